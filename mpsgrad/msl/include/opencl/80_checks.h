// What instrumented programs call: every access to memory, barrier, simdgroup function, division and loop reports here.
// A launch runs one threadgroup. Its threads run one after another from barrier to barrier, or, where there are
// simdgroups, 32 abreast; these take turns in functions that are not optimized, so nothing here is atomic. Such functions
// cannot ask which thread they run for, so they are told.
//@ checks_mtl : mem_flags lift_mtl
#define IN_TURN_MTL __attribute__((noinline, optnone))
enum : uint { NOTHING_MTL, READ_MTL, WRITE_MTL, UPDATE_MTL, DESIGNATE_MTL, LEND_MTL, PLACE_MTL, ATOMIC_MTL, ATOMIC_READ_MTL, ATOMIC_WRITE_MTL, ATOMIC_SWAP_MTL };
enum : uint { BOUNDS_MTL, EXTENT_MTL, UNINITIALISED_MTL, RACE_MTL, BARRIER_MTL, LANES_MTL, ZERO_MTL, LOOP_MTL };
enum : uint { THREAD_MTL, DEVICE_MTL, LOCAL_MTL, ANY_MTL };
enum : ulong { SUSPECTS_MTL = 1 << 18, PROBES_MTL = 64 };
enum : uint { MOST_THREADS_MTL = 1024, MOST_REGIONS_MTL = 96, MOST_BARRIERS_MTL = 4096, SPARE_BYTES_MTL = 256, MOST_OWN_MTL = 64, NOWHERE_MTL = 0xffffffffu };

// What one thread did to a granule of memory, and when; group 0 is nobody.
struct record_mtl { uint group, epoch, lanes; ushort barriers, thread, site, access; };
struct granule_mtl { record_mtl write, read, read2, atomic, atomic2, atomic_read, atomic_write; uint initialised; };
// Nothing that a kernel may touch lies less than ``fence`` bytes away.
struct region_mtl { ulong start, end; __global granule_mtl *shadow; uint name, space, undefined, fence; };
// What ``index`` and ``extent`` count differs: bytes of memory, elements of an array, threads, steps; ``reached`` has the
// bytes of an element of a thread's own variable.
struct finding_mtl {
  uint count, group, thread, site, other_group, other_thread, other_site, region, access, other_access, size, reached;
  ulong address;
  long index;
  ulong extent;
};
struct thread_mtl { uint barriers, local_epoch, device_epoch, local_lanes, device_lanes, left, steps, target, own, begun, waits, copies, passes; };
// A variable of a thread's own, of elements of ``element`` bytes; at ``known`` there is a flag for each ``number`` bytes of
// it, if it is watched.
struct own_mtl { ulong start, end, known; uint number, fence, name, element; };
struct context_mtl {
  ulong low, high, granule, local_granules;
  __global granule_mtl *local_shadow;
  __global finding_mtl *findings;
  __global uint *lanes;
  __global ulong *suspects;
  uint sites, lane_sites, most_steps, device_regions;
  uint argument_bytes[128];
  uint group, threads, stopped, regions, local_used, deepest, reversed, flipped, came[2];
  region_mtl region[MOST_REGIONS_MTL];
  thread_mtl thread[MOST_THREADS_MTL];
  uint barrier_site[MOST_BARRIERS_MTL], barrier_count[MOST_BARRIERS_MTL];
  own_mtl own[MOST_THREADS_MTL][MOST_OWN_MTL];
  uchar spare[MOST_THREADS_MTL][SPARE_BYTES_MTL];
};
__global context_mtl *checks_mtl;

// Where threads are to run in the other order each one takes the place of its opposite, or each simdgroup does if all of
// them are whole.
#ifdef ONE_BY_ONE_MTL
enum : ulong { ABREAST_MTL = 1 };
#else
enum : ulong { ABREAST_MTL = 32 };
#define get_sub_group_id() ((uint)(place_mtl(get_sub_group_id() * ABREAST_MTL, get_local_size(0)) / ABREAST_MTL))
#endif
inline ulong place_mtl(ulong place, ulong count) {
  if (!checks_mtl->reversed || count % ABREAST_MTL != 0) return place;
  return count - ABREAST_MTL - place / ABREAST_MTL * ABREAST_MTL + place % ABREAST_MTL;
}
#define get_local_id(axis) place_mtl(get_local_id(axis), get_local_size(axis))
#define get_global_id(axis) (get_global_offset(axis) + get_local_id(axis))
#define get_local_linear_id() place_mtl(get_local_linear_id(), get_local_size(0) * get_local_size(1) * get_local_size(2))
inline uint thread_mtl_now() { return (uint)get_local_linear_id(); }

inline finding_mtl finding_at_mtl(uint site, uint thread) {
  finding_mtl found = {};
  found.site = site;
  found.thread = thread;
  found.region = NOWHERE_MTL;
  return found;
}

// Whether a read of what has no value, or a value that looks like none, is to be reported. When the kernel runs again, what
// has no value looks otherwise, and only reads that were found in the first run, too, are.
IN_TURN_MTL bool suspected_mtl(finding_mtl found) {
  __global context_mtl *c = checks_mtl;
  ulong words[] = {c->group, found.thread, c->thread[found.thread].copies, found.site, found.region, (ulong)found.index}, key = 1;
  for (uint k = 0; k < 6; k++) {
    key = (key ^ words[k]) * 0x9e3779b97f4a7c15ul;
    key ^= key >> 29;
  }
  for (ulong k = 0; k < PROBES_MTL; k++) {
    __global ulong *place = c->suspects + (key + k) % SUSPECTS_MTL;
    if (*place == key) return true;
    if (*place == 0) {
      if (!c->flipped) *place = key;
      return !c->flipped;
    }
  }
  return !c->flipped;
}
IN_TURN_MTL void report_mtl(uint kind, finding_mtl found) {
  __global context_mtl *c = checks_mtl;
  if (c->stopped) return;
  __global finding_mtl *slot = c->findings + (ulong)kind * c->sites + found.site;
  uint count = slot->count;
  if (count == 0) {
    found.group = c->group;
    *slot = found;
  }
  slot->count = count + 1;
}

// Whether what another thread did is not ordered before what this one does now.
inline bool unordered_mtl(record_mtl r, uint space, uint thread) {
  __global context_mtl *c = checks_mtl;
  if (r.group == 0) return false;
  if (r.group != c->group) return space == DEVICE_MTL;
  if (r.thread == thread) return false;
  __global thread_mtl *t = &c->thread[thread];
  if (r.epoch != (space == DEVICE_MTL ? t->device_epoch : t->local_epoch)) return false;
  return r.thread / 32 != thread / 32 || r.lanes == (space == DEVICE_MTL ? t->device_lanes : t->local_lanes);
}

// Keeps two threads of one time, or of several threadgroups, so that whoever comes next finds one that is not itself.
inline void remember_mtl(__global record_mtl *first, __global record_mtl *second, record_mtl now) {
  record_mtl known = *first;
  bool same_time = known.group == now.group && known.epoch == now.epoch && known.lanes == now.lanes;
  if (known.group != 0 && (known.group != now.group || (same_time && known.thread != now.thread))) *second = now;
  else if (!same_time) *first = now;
}

// The region of an address, or the nearest one if ``nearest``; -1 where there is none.
IN_TURN_MTL int find_region_mtl(ulong address, uint space, bool nearest) {
  __global context_mtl *c = checks_mtl;
  int best = -1;
  ulong least = space == LOCAL_MTL ? 1ul << 20 : 1ul << 40;
  for (uint i = space == LOCAL_MTL ? c->device_regions : 0; i < (space == DEVICE_MTL ? c->device_regions : c->regions); i++) {
    __global region_mtl *r = &c->region[i];
    if (address >= r->start && address < r->end) return (int)i;
    ulong distance = address < r->start ? r->start - address : address - r->end;
    if (distance < least) { least = distance; best = (int)i; }
  }
  return nearest ? best : -1;
}

// Bytes of the thread's own that stand for memory that it may not touch.
inline ulong spare_mtl(uint thread, uint size) {
  __global uchar *spare = checks_mtl->spare[thread];
  for (uint i = 0; i < size && i < SPARE_BYTES_MTL; i++) spare[i] = 0;
  return (ulong)spare;
}

// Whether a thread's own atomic update, or with ``any`` that of one of its threadgroup, came before its atomic store: the
// last one to count up may well set the counter back.
inline bool updated_mtl(record_mtl r, record_mtl now, bool any) {
  bool updates = r.access == ATOMIC_MTL || r.access == ATOMIC_SWAP_MTL;
  return updates && r.group == now.group && (any || (r.thread == now.thread && r.epoch == now.epoch));
}
// Whether an atomic store may undo an update; one that sets back what its threadgroup counted, only of that threadgroup.
inline bool undone_mtl(record_mtl update, record_mtl now, bool resets, uint space) {
  return update.access == ATOMIC_MTL && (!resets || update.group == now.group) && unordered_mtl(update, space, now.thread);
}

inline bool is_same_mtl(record_mtl a, record_mtl b) { return a.group == b.group && a.thread == b.thread && a.site == b.site && a.epoch == b.epoch; }

// Notes an access to one granule, of which ``bytes`` from ``start`` on are touched; whether they were uninitialised.
IN_TURN_MTL bool touch_mtl(int index, ulong start, uint bytes, finding_mtl found, const uchar *value) {
  __global context_mtl *c = checks_mtl;
  __global region_mtl *r = &c->region[index];
  __global granule_mtl *g = r->shadow + (start - r->start) / c->granule;
  uint space = r->space, thread = found.thread, access = found.access;
  __global thread_mtl *t = &c->thread[thread];
  record_mtl now = {c->group, space == DEVICE_MTL ? t->device_epoch : t->local_epoch,
                    space == DEVICE_MTL ? t->device_lanes : t->local_lanes, (ushort)t->barriers, (ushort)thread, (ushort)found.site, (ushort)access};
  bool atomic = access >= ATOMIC_MTL;
  bool writes = access != READ_MTL && access != ATOMIC_READ_MTL;
  bool reads = access != WRITE_MTL && access != ATOMIC_WRITE_MTL;
  // An atomic store and the update of another thread: the one that comes second undoes the other, or adds to it.
  bool stores = access == ATOMIC_WRITE_MTL && !updated_mtl(g->atomic, now, false) && !updated_mtl(g->atomic2, now, false);
  bool resets = space == DEVICE_MTL && (updated_mtl(g->atomic, now, true) || updated_mtl(g->atomic2, now, true));
  record_mtl other = {0, 0, 0, 0, 0, 0, 0};
  uint other_access = NOTHING_MTL;
  if (unordered_mtl(g->write, space, thread)) { other = g->write; other_access = WRITE_MTL; }
  else if (!atomic && unordered_mtl(g->atomic, space, thread)) { other = g->atomic; other_access = other.access; }
  else if (!atomic && unordered_mtl(g->atomic2, space, thread)) { other = g->atomic2; other_access = other.access; }
  else if (!atomic && writes && unordered_mtl(g->atomic_read, space, thread)) { other = g->atomic_read; other_access = ATOMIC_READ_MTL; }
  else if (stores && undone_mtl(g->atomic, now, resets, space)) { other = g->atomic; other_access = ATOMIC_MTL; }
  else if (stores && undone_mtl(g->atomic2, now, resets, space)) { other = g->atomic2; other_access = ATOMIC_MTL; }
  else if (access == ATOMIC_MTL && (g->atomic_write.access == ATOMIC_WRITE_MTL || g->atomic_write.group == now.group) && unordered_mtl(g->atomic_write, space, thread)) { other = g->atomic_write; other_access = ATOMIC_WRITE_MTL; }
  else if (writes && unordered_mtl(g->read, space, thread)) { other = g->read; other_access = READ_MTL; }
  else if (writes && unordered_mtl(g->read2, space, thread)) { other = g->read2; other_access = READ_MTL; }
  uint tag = space == DEVICE_MTL ? 1 : c->group;
  bool is_first = r->undefined && g->initialised != tag;
  if (other.group != 0) {
    // What came first to memory without a value may have been an atomic store, which others do not race with.
    if (other_access == WRITE_MTL && (is_same_mtl(other, g->atomic) || is_same_mtl(other, g->atomic2))) other_access = ATOMIC_WRITE_MTL;
    // Several threads may write the same value: nobody can tell who was the last.
    bool same = (access == ATOMIC_WRITE_MTL && other_access == ATOMIC_WRITE_MTL) || (value != 0 && other_access == WRITE_MTL);
    for (uint i = 0; same && access == WRITE_MTL && i < bytes; i++) same = ((__global uchar *)start)[i] == value[i];
    if (!same) {
      found.other_group = other.group;
      found.other_thread = other.thread;
      found.other_site = other.site;
      found.other_access = other_access;
      found.reached = other.barriers != now.barriers;
      report_mtl(RACE_MTL, found);
    }
  }
  bool uninitialised = reads && is_first;
  if (writes) g->initialised = tag;
  if (atomic && !writes) g->atomic_read = now;
  else if (atomic) {
    // Nothing but a barrier makes another thread's atomic function come behind the one that gave the first value.
    if (is_first && !reads) g->write = now;
    remember_mtl(&g->atomic, &g->atomic2, now);
    if (stores) {
      g->atomic_write = now;
      if (resets) g->atomic_write.access = NOTHING_MTL;
    }
  }
  else if (writes) g->write = now;
  else remember_mtl(&g->read, &g->read2, now);
  return uninitialised;
}

// An access to an object of ``size`` bytes: where in it which components are, and what is known of it when it compiles.
// An ``object`` was reached by its name, or as an array whose extent is known: it is right where it is.
struct access_mtl { uint size, offset, unit, mask, alignment, space, kind; bool aggregate, is_const, object; };
// The same in a number: a struct would be laid out once for each of 32 threads.
inline constexpr ulong packed_access_mtl(uint unit, uint mask, uint alignment, uint space, uint kind, bool aggregate, bool is_const, bool object) {
  return (ulong)unit | (ulong)mask << 32 | (ulong)(alignment > 255 ? 255 : alignment) << 40 | (ulong)space << 48 | (ulong)kind << 52 | (ulong)aggregate << 56 | (ulong)is_const << 57 | (ulong)object << 58;
}

IN_TURN_MTL ulong check_mtl(ulong address, ulong origin, uint size, uint offset, ulong packed, uint site, uint thread, const uchar *value) {
  access_mtl a = {size, offset, (uint)packed, (uint)(packed >> 32) & 255, (uint)(packed >> 40) & 255, (uint)(packed >> 48) & 15, (uint)(packed >> 52) & 15, (packed >> 56 & 1) != 0, (packed >> 57 & 1) != 0, (packed >> 58 & 1) != 0};
  __global context_mtl *c = checks_mtl;
  if (address >= (ulong)c->spare && address < (ulong)(c + 1)) return address;
  finding_mtl found = finding_at_mtl(site, thread);
  int at = find_region_mtl(origin, a.space, false);
  if (at < 0 && origin != address) at = find_region_mtl(address, a.space, false);
  if (at < 0) {
    if (a.object) return address;
    bool is_null = address < 65536;
    bool near = a.space == LOCAL_MTL || (address + (16ul << 20) > c->low && address < c->high + (16ul << 20));
    if (!is_null) at = find_region_mtl(address, a.space, true);
    if (!is_null && !near && a.is_const) {
      __global region_mtl *r = &c->region[at < 0 ? 0 : at];
      if (at < 0 || address + r->fence < r->start || address >= r->end + r->fence) return address;
    }
  }
  __global region_mtl *r = &c->region[at < 0 ? 0 : at];
  found.access = a.kind;
  found.address = address;
  found.size = a.size;
  if (at >= 0) {
    found.region = r->name;
    found.index = (long)(address - r->start);
    found.extent = r->end - r->start;
  }
  if (at < 0 || address < r->start || address + a.size > r->end) {
    report_mtl(BOUNDS_MTL, found);
    return spare_mtl(found.thread, a.size);
  }
  if ((a.kind >= DESIGNATE_MTL && a.kind <= PLACE_MTL) || r->shadow == 0) return address;
  if (!c->stopped) {
    ulong granule = c->granule;
    bool some = false, every = true, suspected = false;
    for (uint k = 0; (a.mask >> k) != 0; k++) {
      if (((a.mask >> k) & 1) == 0) continue;
      ulong first = address + a.offset + k * a.unit, last = first + a.unit;
      for (ulong place = first - (first - r->start) % granule; place < last; place += granule) {
        ulong begin = place > first ? place : first, end = place + granule < last ? place + granule : last;
        bool uninitialised = touch_mtl(at, begin, (uint)(end - begin), found, value != 0 ? value + (begin - address - a.offset) : 0);
        some = some || uninitialised;
        every = every && uninitialised;
        if (uninitialised && !a.aggregate) {
          // The same bytes look so whatever the memory looks like, if they have no value.
          finding_mtl part = found;
          part.index += (long)(begin - address);
          suspected = suspected_mtl(part) || suspected;
        }
      }
    }
    // Of a struct some members may never have had a value, though all are copied.
    if (a.aggregate) suspected = some && every && suspected_mtl(found);
    if (suspected) report_mtl(UNINITIALISED_MTL, found);
  }
  if (value != 0) {
    for (uint k = 0, i = 0; (a.mask >> k) != 0; k++) {
      for (uint b = 0; b < a.unit; b++, i++) ((__global uchar *)(address + a.offset))[i] = value[i];
    }
  } else if (address % a.alignment != 0 && a.kind == READ_MTL && a.size <= SPARE_BYTES_MTL) {
    // Apple GPUs read a vector from wherever its elements are; this processor does not.
    ulong copy = spare_mtl(found.thread, 0);
    for (uint i = 0; i < a.size; i++) ((__global uchar *)copy)[i] = ((__global uchar *)address)[i];
    return copy;
  }
  return address;
}
ulong own_check_mtl(ulong address, ulong origin, uint size, uint offset, ulong packed, uint site, uint thread);
// The index, or 0 in place of one that an array does not have.
IN_TURN_MTL void wrong_extent_mtl(long index, ulong count, uint site, uint access, uint thread) {
  finding_mtl found = finding_at_mtl(site, thread);
  found.access = access;
  found.index = index;
  found.extent = count;
  report_mtl(EXTENT_MTL, found);
}
inline ulong extent_mtl(long index, ulong count, uint site, uint access) {
  if (index >= 0 && (ulong)index < count) return (ulong)index;
  wrong_extent_mtl(index, count, site, access, thread_mtl_now());
  return 0;
}

template <typename T> struct space_mtl { static constexpr uint value = ANY_MTL; typedef T type; };
template <typename T> struct space_mtl<__private T> { static constexpr uint value = THREAD_MTL; typedef T type; };
template <typename T> struct space_mtl<__global T> { static constexpr uint value = DEVICE_MTL; typedef T type; };
template <typename T> struct space_mtl<__local T> { static constexpr uint value = LOCAL_MTL; typedef T type; };
template <typename T> struct space_mtl<__generic T> { static constexpr uint value = ANY_MTL; typedef T type; };
template <typename T> struct unqualified_mtl { typedef T type; static constexpr bool is_const = false; };
template <typename T> struct unqualified_mtl<const T> { typedef T type; static constexpr bool is_const = true; };
template <typename T> struct unqualified_mtl<volatile T> { typedef T type; static constexpr bool is_const = false; };
template <typename T> struct unqualified_mtl<const volatile T> { typedef T type; static constexpr bool is_const = true; };
template <typename T> struct referred_mtl { typedef T type; };
template <typename T> struct referred_mtl<T &> { typedef T type; };
template <typename T> struct referred_mtl<T &&> { typedef T type; };
template <typename T> struct is_reference_mtl { static constexpr bool value = false; };
template <typename T> struct is_reference_mtl<T &> { static constexpr bool value = true; };
// A type without address space and const, and one without const.
template <typename T> using bare_mtl = typename unqualified_mtl<typename space_mtl<T>::type>::type;
template <typename T> struct is_const_mtl { static constexpr bool value = unqualified_mtl<typename space_mtl<T>::type>::is_const; };
enum : uint { OBJECT_MTL, POINTER_MTL, ARRAY_MTL, VECTOR_MTL };
template <typename T> struct form_mtl { static constexpr uint value = OBJECT_MTL, components = 1; };
template <typename T> struct form_mtl<T *> { static constexpr uint value = POINTER_MTL, components = 1; typedef T element; };
template <typename T, size_t N> struct form_mtl<T[N]> { static constexpr uint value = ARRAY_MTL, components = 1; typedef T element; static constexpr ulong count = N; };
template <typename E, int N> struct form_mtl<vec_mtl<E, N>> { static constexpr uint value = VECTOR_MTL, components = N; typedef E element; static constexpr ulong count = N; };
// How many elements an array of the library's has, or columns a matrix.
template <typename T, typename = void> struct contained_mtl { static constexpr ulong count = 0; };
template <typename T> struct contained_mtl<T, decltype((void)((T *)0)->values_mtl)> { static constexpr ulong count = form_mtl<decltype(T::values_mtl)>::count; };
template <typename T> struct contained_mtl<T, decltype((void)sizeof(typename T::braces_mtl))> { static constexpr ulong count = form_mtl<decltype(T::columns)>::count; };

// The part of an object that a path of members names, down to the components of a vector. A member's template (made for
// each name that the program uses) has its type and offset, and for components a mask of them and their type.
template <template <typename> class... M> struct path_mtl;
template <typename T, typename P> struct part_mtl;
template <typename T> struct part_mtl<T, path_mtl<>> {
  typedef T type;
  static constexpr bool is_component = false;
  static constexpr uint offset = 0, unit = sizeof(T) / (form_mtl<T>::components == 3 ? 4 : form_mtl<T>::components);
  static constexpr uint mask = (1u << form_mtl<T>::components) - 1;
};
// What is behind components (components of them) changes nothing.
template <bool components, typename T, template <typename> class... M> struct behind_mtl { typedef part_mtl<T, path_mtl<M...>> type; };
template <typename T, template <typename> class... M> struct behind_mtl<true, T, M...> { typedef part_mtl<T, path_mtl<>> type; };
template <typename T, template <typename> class F, template <typename> class... M> struct part_mtl<T, path_mtl<F, M...>> {
  typedef typename behind_mtl<F<T>::mask != 0, bare_mtl<typename F<T>::type>, M...>::type rest;
  typedef typename rest::type type;
  static constexpr bool is_component = F<T>::mask != 0 || rest::is_component;
  static constexpr uint offset = F<T>::offset + rest::offset;
  static constexpr uint unit = F<T>::mask != 0 ? F<T>::unit : rest::unit, mask = F<T>::mask != 0 ? F<T>::mask : rest::mask;
};

template <typename E, uint K, typename P, bool O> struct described_mtl {
  typedef bare_mtl<E> T;
  typedef part_mtl<T, P> part;
  typedef typename part::type type;
  // An array that is read becomes a pointer to its first element, for which nothing is read yet.
  static constexpr bool is_access = form_mtl<type>::value != ARRAY_MTL || K != READ_MTL;
  static constexpr uint size = sizeof(T), offset = part::offset;
  static constexpr ulong packed = packed_access_mtl(part::unit, part::mask, alignof(T), space_mtl<E>::value, K, __is_class(type) || __is_union(type), is_const_mtl<E>::value, O || space_mtl<E>::value == ANY_MTL);
};
template <typename E, uint K, typename P, bool O> __attribute__((always_inline)) inline ulong checked_mtl(ulong address, ulong origin, uint site) {
  typedef described_mtl<E, K, P, O> a;
  if constexpr (!a::is_access) return address;
  else if constexpr (space_mtl<E>::value == THREAD_MTL) return own_check_mtl(address, origin, a::size, a::offset, a::packed, site, thread_mtl_now());
  else if constexpr (space_mtl<E>::value == ANY_MTL) return own_check_mtl(check_mtl(address, origin, a::size, a::offset, a::packed, site, thread_mtl_now(), 0), origin, a::size, a::offset, a::packed, site, thread_mtl_now());
  else return check_mtl(address, origin, a::size, a::offset, a::packed, site, thread_mtl_now(), 0);
}

// base[index]
template <uint K, typename P, typename B, typename I> __attribute__((always_inline)) inline decltype(auto) at_mtl(B &&base, I index, uint site) {
  typedef typename referred_mtl<B>::type L;
  typedef bare_mtl<L> T;
  if constexpr (form_mtl<T>::value == POINTER_MTL) {
    typedef typename form_mtl<T>::element E;
    return (*(E *)checked_mtl<E, K, P, false>((ulong)(base + index), (ulong)base, site));
  } else if constexpr (form_mtl<T>::value == ARRAY_MTL) {
    typedef typename referred_mtl<decltype((base[0]))>::type E;
    // An array of one element stands for as many as the buffer has.
    constexpr bool is_open = form_mtl<T>::count == 1 && space_mtl<E>::value == DEVICE_MTL;
    ulong inside = is_open ? (ulong)index : extent_mtl((long)index, form_mtl<T>::count, site, K);
    if constexpr (space_mtl<E>::value == THREAD_MTL) return (base[inside]);
    else return (*(E *)checked_mtl<E, K, P, !is_open>((ulong)(&base[0] + inside), (ulong)(&base[0] + (is_open ? 0 : inside)), site));
  } else if constexpr (form_mtl<T>::value == VECTOR_MTL) {
    typedef typename form_mtl<T>::element E;
    ulong inside = extent_mtl((long)index, form_mtl<T>::count, site, K);
    if constexpr (space_mtl<L>::value == DEVICE_MTL) {
      typedef const __global E C;
      if constexpr (is_const_mtl<L>::value) return (*(C *)checked_mtl<C, K, P, true>((ulong)&base + inside * sizeof(E), (ulong)&base, site));
      else return (*(__global E *)checked_mtl<__global E, K, P, true>((ulong)&base + inside * sizeof(E), (ulong)&base, site));
    } else if constexpr (space_mtl<L>::value == LOCAL_MTL) {
      return (*(__local E *)checked_mtl<__local E, K, P, true>((ulong)&base + inside * sizeof(E), (ulong)&base, site));
    } else if constexpr (is_const_mtl<L>::value) {
      return (E)base[inside];
    } else if constexpr (space_mtl<L>::value == ANY_MTL) {
      return (*(__generic E *)checked_mtl<__generic E, K, P, true>((ulong)&base + inside * sizeof(E), (ulong)&base, site));
    } else {
      return (((__private E *)&base)[inside]);
    }
  } else {
    // A class with an operator of its own.
    if constexpr (contained_mtl<T>::count != 0) index = (I)extent_mtl((long)index, contained_mtl<T>::count, site, K);
    typedef decltype(base[index]) R;
    if constexpr (is_reference_mtl<R>::value) {
      typedef typename referred_mtl<R>::type E;
      R element = base[index];
      if constexpr (space_mtl<E>::value == THREAD_MTL) return (element);
      else return (*(E *)checked_mtl<E, K, P, true>((ulong)&element, (ulong)&element, site));
    } else {
      return base[index];
    }
  }
}

// *pointer
template <uint K, typename P, typename B> __attribute__((always_inline)) inline decltype(auto) deref_mtl(B &&pointer, uint site) {
  typedef bare_mtl<typename referred_mtl<B>::type> T;
  if constexpr (form_mtl<T>::value == POINTER_MTL || form_mtl<T>::value == ARRAY_MTL) {
    typedef typename referred_mtl<decltype((*pointer))>::type E;
    return (*(E *)checked_mtl<E, K, P, false>((ulong)&*pointer, (ulong)&*pointer, site));
  } else {
    return *pointer;
  }
}

// *(a + b), whichever of the two is the pointer
template <uint K, typename P, typename A, typename B> __attribute__((always_inline)) inline decltype(auto) sum_mtl(A &&a, B &&b, uint site) {
  constexpr uint form = form_mtl<bare_mtl<typename referred_mtl<A>::type>>::value;
  if constexpr (form == POINTER_MTL || form == ARRAY_MTL) return at_mtl<K, P>(&*a, b, site);
  else return at_mtl<K, P>(&*b, a, site);
}

// What a name denotes.
template <uint K, typename P, typename B> __attribute__((always_inline)) inline decltype(auto) object_mtl(B &&object, uint site) {
  typedef typename referred_mtl<B>::type L;
  if constexpr (space_mtl<L>::value == THREAD_MTL) return (object);
  else return (*(L *)checked_mtl<L, K, P, true>((ulong)&object, (ulong)&object, site));
}

// What a call gives: a value, or a reference to what is accessed.
template <uint K, typename P, typename B> __attribute__((always_inline)) inline decltype(auto) given_mtl(B &&object, uint site) {
  typedef typename referred_mtl<B>::type L;
  if constexpr (!is_reference_mtl<B>::value) {
    return (B)object;
  } else if constexpr (space_mtl<L>::value == THREAD_MTL) {
    checked_mtl<L, K, P, true>((ulong)&object, (ulong)&object, site);
    return (object);
  } else if constexpr (K == DESIGNATE_MTL) {
    return (object);
  } else {
    return object_mtl<K, P>(object, site);
  }
}

// What a thread's own object is filled with that has no value yet: a constructor may leave some of it so, and a copy has it,
// too. What has the pattern is taken to have no value; where values may be as small as a byte some look so by chance.
enum : uint { NO_VALUE_MTL = 0x0b3e6db9u, OTHER_NO_VALUE_MTL = 0xf4c19246u };
inline uchar pattern_byte_mtl(uint pattern, ulong k) { return (uchar)((pattern ^ checks_mtl->flipped) >> k % 4 * 8); }
inline bool has_pattern_mtl(ulong object, uint pattern, ulong start, uint bytes) {
  bool all = true;
  for (ulong k = start; all && k < start + bytes; k++) all = ((__global uchar *)object)[k] == pattern_byte_mtl(pattern, k);
  return all;
}
template <typename T> T &own_filled_mtl(T &object);
// Of an object that was copied to device or threadgroup memory some members may have no value still.
IN_TURN_MTL void filled_mtl(ulong address, uint size, uint space, uint thread) {
  __global context_mtl *c = checks_mtl;
  c->thread[thread].copies += 1;
  int at = find_region_mtl(address, space, false);
  if (at < 0 || c->region[at].shadow == 0) return;
  __global region_mtl *r = &c->region[at];
  uint granule = (uint)c->granule;
  for (uint k = 0; k + granule <= size; k += granule) {
    if (has_pattern_mtl(address, NO_VALUE_MTL, k, granule)) r->shadow[(address + k - r->start) / granule].initialised = 0;
  }
}
// object = value, where the object's place was checked before. Numbers and vectors are stored in the check, byte by byte,
// which so knows whether they change anything.
template <typename B, typename V> __attribute__((always_inline)) inline decltype(auto) store_mtl(B &&object, V value, uint site) {
  typedef typename referred_mtl<B>::type L;
  typedef bare_mtl<L> T;
  if constexpr (space_mtl<L>::value == THREAD_MTL) {
    object = value;
    checked_mtl<L, WRITE_MTL, path_mtl<>, true>((ulong)&object, (ulong)&object, site);
    own_filled_mtl(object);
  } else if constexpr (space_mtl<L>::value == ANY_MTL || __is_class(T) || __is_union(T) || form_mtl<T>::value == ARRAY_MTL) {
    checked_mtl<L, WRITE_MTL, path_mtl<>, true>((ulong)&object, (ulong)&object, site);
    object = value;
    if constexpr (space_mtl<L>::value == ANY_MTL) own_filled_mtl(object);
    if constexpr (__is_class(T) || __is_union(T)) filled_mtl((ulong)&object, sizeof(T), space_mtl<L>::value, thread_mtl_now());
  } else {
    T converted = value;
    typedef described_mtl<L, WRITE_MTL, path_mtl<>, true> a;
    check_mtl((ulong)&object, (ulong)&object, a::size, a::offset, a::packed, site, thread_mtl_now(), (const uchar *)&converted);
  }
  return (object);
}

// The pointer that an atomic function takes.
template <uint K, typename B> __attribute__((always_inline)) inline B *atomic_pointer_mtl(B *pointer, uint site) {
  if constexpr (space_mtl<B>::value == THREAD_MTL) return pointer;
  else return (B *)checked_mtl<B, K, path_mtl<>, false>((ulong)pointer, (ulong)pointer, site);
}

// Threadgroup memory.
IN_TURN_MTL void threadgroup_region_mtl(ulong start, ulong bytes, uint name) {
  __global context_mtl *c = checks_mtl;
  for (uint i = c->device_regions; i < c->regions; i++) if (c->region[i].name == name) return;
  ulong granules = (bytes + c->granule - 1) / c->granule;
  if (c->regions >= MOST_REGIONS_MTL || c->local_used + granules > c->local_granules) return;
  region_mtl r = {start, start + bytes, c->local_shadow + c->local_used, name, LOCAL_MTL, 1, 0};
  c->region[c->regions] = r;
  c->regions += 1;
  c->local_used += (uint)granules;
}
template <typename T> inline void threadgroup_variable_mtl(T &object, uint name) { threadgroup_region_mtl((ulong)&object, sizeof(T), name); }
template <typename T> inline void threadgroup_argument_mtl(T *pointer, uint number, uint name) {
  threadgroup_region_mtl((ulong)pointer, checks_mtl->argument_bytes[number], name);
}
// A constant of the program's own.
IN_TURN_MTL void constant_region_mtl(ulong start, ulong bytes, uint name, uint fence) {
  __global context_mtl *c = checks_mtl;
  for (uint i = 0; i < c->device_regions; i++) if (c->region[i].name == name) return;
  if (c->device_regions >= MOST_REGIONS_MTL || c->regions != c->device_regions) return;
  region_mtl r = {start, start + bytes, 0, name, DEVICE_MTL, 0, fence};
  c->region[c->device_regions] = r;
  c->device_regions += 1;
  c->regions = c->device_regions;
}
template <typename T> inline void constant_mtl(T &object, uint name, uint fence) { constant_region_mtl((ulong)&object, sizeof(T), name, fence * 64); }
// Neighbours in threadgroup memory stand apart, so that what leaves one does not get into the next.
template <typename T> struct fenced_mtl { T object; uchar fence[256]; };

// Barriers.
// A thread that ``comes`` not is only led past the barrier.
IN_TURN_MTL void arrive_mtl(uint flags, bool comes, uint site, uint thread) {
  __global context_mtl *c = checks_mtl;
  __global thread_mtl *t = &c->thread[thread];
  // Of two barriers one behind the other: that some thread came to the one that all are at.
  t->passes += 1;
  if (!comes) return;
  c->came[t->passes % 2] = t->passes;
  uint k = t->barriers;
  if (k < MOST_BARRIERS_MTL && !c->stopped) {
    if (c->barrier_count[k] == 0) {
      c->barrier_site[k] = site;
    } else if (c->barrier_site[k] != site) {
      finding_mtl found = finding_at_mtl(site, thread);
      found.other_group = c->group;
      found.other_site = c->barrier_site[k];
      for (uint other = c->threads; other-- > 0;) if (other != thread && c->thread[other].barriers > k) found.other_thread = other;
      report_mtl(BARRIER_MTL, found);
      c->stopped = 1;
    }
    c->barrier_count[k] += 1;
  }
  t->barriers = k + 1;
  t->waits = 1;
  c->deepest = c->deepest > k + 1 ? c->deepest : k + 1;
  if (flags & 1) t->device_epoch += 1;
  if (flags & 2) t->local_epoch += 1;
}
// Reports a barrier that only some threads have reached.
IN_TURN_MTL void incomplete_barrier_mtl(uint k) {
  __global context_mtl *c = checks_mtl;
  finding_mtl found = finding_at_mtl(c->barrier_site[k], 0);
  found.reached = c->barrier_count[k];
  found.extent = c->threads;
  bool reached = false, missing = false;
  for (uint t = 0; t < c->threads; t++) {
    bool here = c->thread[t].barriers > k;
    if (here && !reached) { found.thread = t; reached = true; }
    if (!here && !missing) { found.other_thread = t; found.other_site = c->thread[t].left; found.other_group = c->group; missing = true; }
  }
  report_mtl(BARRIER_MTL, found);
  c->stopped = 1;
}
IN_TURN_MTL void depart_mtl(uint thread) {
  __global context_mtl *c = checks_mtl;
  __global thread_mtl *t = &c->thread[thread];
  // A thread may be taken past a barrier that it did not come to.
  uint k = t->waits != 0 ? t->barriers - 1 : t->barriers;
  t->waits = 0;
  bool came = c->came[t->passes % 2] == t->passes;
  if (k < MOST_BARRIERS_MTL && !c->stopped && came && c->barrier_count[k] != c->threads) incomplete_barrier_mtl(k);
}
#define threadgroup_barrier_checked_mtl(flags, comes, site) (arrive_mtl((uint)(flags), comes, site, thread_mtl_now()), threadgroup_barrier(flags), depart_mtl(thread_mtl_now()))
inline void returned_mtl(uint site) { checks_mtl->thread[thread_mtl_now()].left = site + 1; }

// Simdgroups: a lane counts its calls of each function; lanes that call it abreast have counted as far.
enum : uint { LANE_MTL, LANE_XOR_MTL, LANE_UP_MTL, LANE_DOWN_MTL, LANE_ROTATE_UP_MTL, LANE_ROTATE_DOWN_MTL };
IN_TURN_MTL void lane_enters_mtl(uint index, uint thread) { checks_mtl->lanes[(ulong)index * MOST_THREADS_MTL + thread] += 1; }
template <typename T> inline T lane_in_mtl(T value, uint index) { lane_enters_mtl(index, thread_mtl_now()); return value; }
IN_TURN_MTL void lane_target_mtl(uint target, uint thread) { checks_mtl->thread[thread].target = target; }
// The argument of a function that reads another one of W lanes.
template <uint K, uint W, typename N> inline N lane_from_mtl(N n) {
  uint lane = get_sub_group_local_id() % W, k = (uint)n;
  uint from = K == LANE_MTL ? k : K == LANE_XOR_MTL ? lane ^ k : K == LANE_ROTATE_UP_MTL ? (lane - k) % W : K == LANE_ROTATE_DOWN_MTL ? (lane + k) % W
    : K == LANE_UP_MTL ? (lane >= k ? lane - k : lane) : (lane + k < W ? lane + k : lane);
  lane_target_mtl(from < W ? get_sub_group_local_id() - lane + from : NOWHERE_MTL, thread_mtl_now());
  return n;
}
IN_TURN_MTL void lane_leaves_mtl(bool all, uint index, uint site, uint thread) {
  __global context_mtl *c = checks_mtl;
  uint first = thread / 32 * 32, target = c->thread[thread].target, missing = NOWHERE_MTL, reached = 0;
  __global uint *counts = c->lanes + (ulong)index * MOST_THREADS_MTL;
  for (uint k = 32; k-- > 0;) {
    bool here = first + k < c->threads && counts[first + k] == counts[thread];
    reached += here;
    if (!here && (all ? first + k < c->threads : k == target)) missing = first + k;
  }
  if (!all && target == NOWHERE_MTL) missing = NOWHERE_MTL - 1;
  if (missing == NOWHERE_MTL) return;
  finding_mtl found = finding_at_mtl(site, thread);
  found.other_thread = missing;
  found.other_group = missing < c->threads ? c->group : 0;
  found.reached = reached;
  found.extent = c->threads - first < 32 ? c->threads - first : 32;
  report_mtl(LANES_MTL, found);
}
template <typename T> inline T lane_out_mtl(T value, uint index, uint site) { lane_leaves_mtl(false, index, site, thread_mtl_now()); return value; }
#define checked_lanes_mtl(call, index, site) (lane_enters_mtl(index, thread_mtl_now()), call, lane_leaves_mtl(true, index, site, thread_mtl_now()))
IN_TURN_MTL void lanes_fence_mtl(uint flags, uint thread) {
  __global thread_mtl *t = &checks_mtl->thread[thread];
  if (flags & 1) t->device_lanes += 1;
  if (flags & 2) t->local_lanes += 1;
}
#define simdgroup_barrier_checked_mtl(flags, index, site) checked_lanes_mtl((lanes_fence_mtl((uint)(flags), thread_mtl_now()), simdgroup_barrier(flags)), index, site)

// Divisions and loops.
template <typename T> struct integer_mtl { static constexpr bool value = false; };
template <> struct integer_mtl<char> { static constexpr bool value = true; };
template <> struct integer_mtl<uchar> { static constexpr bool value = true; };
template <> struct integer_mtl<short> { static constexpr bool value = true; };
template <> struct integer_mtl<ushort> { static constexpr bool value = true; };
template <> struct integer_mtl<int> { static constexpr bool value = true; };
template <> struct integer_mtl<uint> { static constexpr bool value = true; };
template <> struct integer_mtl<long> { static constexpr bool value = true; };
template <> struct integer_mtl<ulong> { static constexpr bool value = true; };
IN_TURN_MTL void division_mtl(uint site, uint thread) { report_mtl(ZERO_MTL, finding_at_mtl(site, thread)); }
template <typename B> __attribute__((always_inline)) inline B nonzero_mtl(B divisor, uint site) {
  if (divisor != 0) return divisor;
  division_mtl(site, thread_mtl_now());
  return (B)1;
}
// The divisor, with 1 in the place of what would stop this processor.
template <typename A, typename B> __attribute__((always_inline)) inline B divisor_mtl(A dividend, B divisor, uint site) {
  if constexpr (integer_mtl<A>::value && integer_mtl<B>::value) {
    typedef decltype(dividend / divisor) R;
    if constexpr ((R)-1 < (R)0) {
      constexpr R least = (R)((ulong)1 << (8 * sizeof(R) - 1));
      if ((R)dividend == least && (R)divisor == (R)-1) return (B)1;
    }
    return nonzero_mtl(divisor, site);
  } else if constexpr (form_mtl<B>::value == VECTOR_MTL) {
    typedef typename form_mtl<B>::element E;
    if constexpr (integer_mtl<E>::value) {
      for (uint k = 0; k < form_mtl<B>::count; k++) divisor[k] = nonzero_mtl((E)divisor[k], site);
    }
    return divisor;
  } else if constexpr (integer_mtl<B>::value && form_mtl<A>::value == VECTOR_MTL) {
    if constexpr (integer_mtl<typename form_mtl<A>::element>::value) return nonzero_mtl(divisor, site);
    else return divisor;
  } else {
    return divisor;
  }
}
#define DIVISION_MTL(name, op) \
  template <typename A, typename B> __attribute__((always_inline)) inline auto name(A a, B b, uint site) { \
    if constexpr (form_mtl<A>::value == VECTOR_MTL || form_mtl<B>::value == VECTOR_MTL) return a op lift_mtl() op divisor_mtl(a, b, site); \
    else return a op divisor_mtl(a, b, site); \
  }
DIVISION_MTL(quotient_mtl, /)
DIVISION_MTL(rest_mtl, %)
#undef DIVISION_MTL

IN_TURN_MTL bool step_mtl(uint site, uint thread) {
  __global context_mtl *c = checks_mtl;
  if (c->stopped) return false;
  __global thread_mtl *t = &c->thread[thread];
  t->steps += 1;
  if (t->steps < c->most_steps) return true;
  finding_mtl found = finding_at_mtl(site, thread);
  found.extent = t->steps;
  report_mtl(LOOP_MTL, found);
  c->stopped = 2;
  return false;
}
inline bool loop_mtl(uint site) { return step_mtl(site, thread_mtl_now()); }

__kernel void begin_checks_mtl(__global context_mtl *c) { checks_mtl = c; }
// Ends the threadgroup before, and starts the one numbered ``group``; 0 starts none.
__kernel void next_group_mtl(uint group, uint threads) {
  __global context_mtl *c = checks_mtl;
  for (uint k = 0; k < c->deepest && k < MOST_BARRIERS_MTL && c->group != 0 && !c->stopped; k++) {
    if (c->barrier_count[k] != c->threads) incomplete_barrier_mtl(k);
  }
  for (uint k = 0; k < c->deepest && k < MOST_BARRIERS_MTL; k++) c->barrier_count[k] = 0;
  for (uint t = 0; t < c->threads; t++) {
    thread_mtl none = {};
    c->thread[t] = none;
    for (uint s = 0; s < c->lane_sites; s++) c->lanes[(ulong)s * MOST_THREADS_MTL + t] = 0;
  }
  // A loop without end would be without end in the next threadgroup too.
  c->stopped = c->stopped == 2 ? 2 : 0;
  c->deepest = 0;
  c->came[0] = c->came[1] = 0;
  c->regions = c->device_regions;
  c->local_used = 0;
  c->group = group;
  c->threads = threads;
}

//@ simdgroup_load_checked_mtl simdgroup_store_checked_mtl : checks_mtl simdgroup_matrix
template <typename M, typename S> inline void simdgroup_load_checked_mtl(uint site, M &m, S *source, ulong row_elements = 8, vec_mtl<ulong, 2> origin = (vec_mtl<ulong, 2>)(0ul), bool transposed = false) {
  uint lane = lane_index_mtl(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane);
  ulong first = origin.y * row_elements + origin.x;
  m.elements_mtl.x = at_mtl<READ_MTL, path_mtl<>>(source, first + (transposed ? column * row_elements + row : row * row_elements + column), site);
  m.elements_mtl.y = at_mtl<READ_MTL, path_mtl<>>(source, first + (transposed ? (column + 1) * row_elements + row : row * row_elements + column + 1), site);
}
template <typename M, typename S> inline void simdgroup_store_checked_mtl(uint site, M m, S *destination, ulong row_elements = 8, vec_mtl<ulong, 2> origin = (vec_mtl<ulong, 2>)(0ul), bool transposed = false) {
  uint lane = lane_index_mtl(), row = matrix_row_mtl(lane), column = matrix_column_mtl(lane);
  ulong first = origin.y * row_elements + origin.x;
  at_mtl<WRITE_MTL, path_mtl<>>(destination, first + (transposed ? column * row_elements + row : row * row_elements + column), site) = m.elements_mtl.x;
  at_mtl<WRITE_MTL, path_mtl<>>(destination, first + (transposed ? (column + 1) * row_elements + row : row * row_elements + column + 1), site) = m.elements_mtl.y;
}
