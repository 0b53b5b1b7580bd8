// What instrumented programs call for a thread's own arrays and variables. A table of those that are there now says which
// one a pointer is in. Each has bytes on both sides that nobody else uses, so that what leaves it is seen; those that
// begin without a value are watched: they carry a flag for each number in them.
//@ own_variables_mtl : checks_mtl
enum : uint { OWN_FENCE_MTL = 64, MOST_FLAGS_MTL = 4096 };

// Bytes of the numbers that an object is made of, at least ``G`` of them in classes; 0 where it is not known whether it
// begins with a value, or has none.
template <typename T, uint G, typename = void> struct number_mtl {
  static constexpr bool is_class = (__is_class(T) || __is_union(T)) && !__is_empty(T) && __is_trivially_destructible(T);
  static constexpr uint bytes = integer_mtl<T>::value || __is_enum(T) ? sizeof(T) : is_class ? G : 0;
};
template <typename T, uint G> struct number_mtl<T, G, decltype((void)((T *)0)->elements_mtl)> { static constexpr uint bytes = 0; };
template <uint G> struct number_mtl<bool, G> { static constexpr uint bytes = sizeof(bool); };
template <uint G> struct number_mtl<half, G> { static constexpr uint bytes = sizeof(half); };
template <uint G> struct number_mtl<float, G> { static constexpr uint bytes = sizeof(float); };
template <typename T, size_t N, uint G> struct number_mtl<T[N], G> { static constexpr uint bytes = number_mtl<T, G>::bytes; };
template <typename E, int N, uint G> struct number_mtl<vec_mtl<E, N>, G> { static constexpr uint bytes = number_mtl<E, G>::bytes; };

template <typename T> struct holds_class_mtl { static constexpr bool value = __is_class(T); };
template <typename T, size_t N> struct holds_class_mtl<T[N]> : holds_class_mtl<T> {};

template <typename T> struct element_mtl { static constexpr uint bytes = sizeof(T) / (contained_mtl<bare_mtl<T>>::count == 0 ? 1 : contained_mtl<bare_mtl<T>>::count); };
template <typename T, size_t N> struct element_mtl<T[N]> { static constexpr uint bytes = element_mtl<T>::bytes; };

template <typename T> struct fenced_own_mtl { uchar before[OWN_FENCE_MTL]; T object; uchar after[OWN_FENCE_MTL]; };
// These loops are many instructions where they are unrolled, for all threads that run abreast.
IN_TURN_MTL void put_pattern_mtl(ulong object, uint bytes, uint pattern) {
  for (uint k = 0; k < bytes; k++) ((__private uchar *)object)[k] = pattern_byte_mtl(pattern, k);
}
IN_TURN_MTL void note_values_mtl(ulong known, uint number, ulong object, ulong first, ulong behind) {
  for (ulong k = first / number; k * number < behind; k++) {
    ((__private uchar *)known)[k] = !has_pattern_mtl(object, NO_VALUE_MTL, k * number, number);
  }
}
// A byte that a constructor gave a value is the same in another object, whatever was there before.
IN_TURN_MTL void note_constructed_mtl(ulong known, uint number, ulong object, ulong other, uint size) {
  for (uint k = 0; k < size; k++) {
    bool is_left = has_pattern_mtl(object, NO_VALUE_MTL, k, 1) && has_pattern_mtl(other, OTHER_NO_VALUE_MTL, k, 1);
    ((__private uchar *)known)[k / number] |= !is_left;
  }
}
// Bytes before an object that fill it before its constructor runs.
template <typename T, uint PATTERN> struct pattern_mtl {
  static constexpr uint offset = (OWN_FENCE_MTL + alignof(T) - 1) / alignof(T) * alignof(T);
  uchar bytes[OWN_FENCE_MTL - 1];
  bool entered;
  pattern_mtl() { put_pattern_mtl((ulong)this + offset, sizeof(T), PATTERN); }
};
template <bool CONSTRUCTED, typename T, uint G> struct before_own_mtl;
template <typename T, uint G> struct watched_own_mtl {
  static constexpr uint number = number_mtl<T, G>::bytes, flags = number == 0 || sizeof(T) / number > MOST_FLAGS_MTL ? 0 : sizeof(T) / number;
  static constexpr bool is_constructed = flags != 0 && !__is_trivially_constructible(T);
  typename before_own_mtl<is_constructed, T, G>::type before;
  T object;
  uchar after[OWN_FENCE_MTL], known[flags + 1];
};
template <typename T> struct constructed_again_mtl {
  pattern_mtl<T, OTHER_NO_VALUE_MTL> before;
  T object;
};

IN_TURN_MTL void own_enters_mtl(ulong start, ulong bytes, ulong known, uint number, uint fence, uint name, uint element, uint thread) {
  __global context_mtl *c = checks_mtl;
  uint place = c->thread[thread].own++;
  c->thread[thread].copies += 1;
  own_mtl own = {start, start + bytes, known, number, fence, name, element};
  if (place < MOST_OWN_MTL) c->own[thread][place] = own;
}
// A variable is in the table already while its constructor runs; the thread was told its name, or 0 if it is another's.
inline void own_begins_mtl(uint name) { checks_mtl->thread[thread_mtl_now()].begun = name; }
template <typename T, uint G> struct begun_own_mtl : pattern_mtl<T, NO_VALUE_MTL> {
  begun_own_mtl() {
    typedef watched_own_mtl<T, G> W;
    uint thread = thread_mtl_now(), name = checks_mtl->thread[thread].begun;
    this->entered = name != 0;
    if (name == 0) return;
    checks_mtl->thread[thread].begun = 0;
    __private W *own = (__private W *)this;
    for (uint k = 0; k < W::flags; k++) own->known[k] = 0;
    own_enters_mtl((ulong)&own->object, sizeof(T), (ulong)&own->known, W::number, OWN_FENCE_MTL, name, element_mtl<T>::bytes, thread);
  }
};
template <typename T, uint G> struct before_own_mtl<true, T, G> { typedef begun_own_mtl<T, G> type; };
template <typename T, uint G> struct before_own_mtl<false, T, G> { typedef uchar type[OWN_FENCE_MTL]; };
IN_TURN_MTL void own_leaves_mtl(uint thread) { checks_mtl->thread[thread].own -= 1; }

// A variable is in the table while this object lives, which is declared behind it.
struct own_variable_mtl {
  template <typename T> own_variable_mtl(__private fenced_own_mtl<T> &own, uint name) { own_enters_mtl((ulong)&own.object, sizeof(T), 0, 0, OWN_FENCE_MTL, name, element_mtl<T>::bytes, thread_mtl_now()); }
  template <typename T, uint G> own_variable_mtl(__private watched_own_mtl<T, G> &own, uint name) {
    typedef watched_own_mtl<T, G> W;
    for (uint k = 0; k < W::flags; k++) own.known[k] = 0;
    if constexpr (W::is_constructed) {
      constructed_again_mtl<T> other;
      note_constructed_mtl((ulong)&own.known, W::number, (ulong)&own.object, (ulong)&other.object, sizeof(T));
    } else if constexpr (W::flags != 0 && holds_class_mtl<T>::value) {
      put_pattern_mtl((ulong)&own.object, sizeof(T), NO_VALUE_MTL);
    }
    enters_mtl(own, name);
  }
  // What begins with values is not made again.
  template <typename T, uint G> own_variable_mtl(__private watched_own_mtl<T, G> &own, uint name, uint) {
    typedef watched_own_mtl<T, G> W;
    if constexpr (W::flags != 0 && holds_class_mtl<T>::value) {
      note_values_mtl((ulong)&own.known, W::number, (ulong)&own.object, 0, sizeof(T));
    } else {
      for (uint k = 0; k < W::flags; k++) own.known[k] = 1;
    }
    enters_mtl(own, name);
  }
  template <typename T, uint G> void enters_mtl(__private watched_own_mtl<T, G> &own, uint name) {
    typedef watched_own_mtl<T, G> W;
    checks_mtl->thread[thread_mtl_now()].begun = 0;
    if constexpr (W::is_constructed) if (own.before.entered) return;
    own_enters_mtl((ulong)&own.object, sizeof(T), W::flags != 0 ? (ulong)&own.known : 0, W::number, OWN_FENCE_MTL, name, element_mtl<T>::bytes, thread_mtl_now());
  }
  template <typename T> own_variable_mtl(__private T *object, uint name) { own_enters_mtl((ulong)object, sizeof(T), 0, 0, 0, name, element_mtl<T>::bytes, thread_mtl_now()); }
  ~own_variable_mtl() { own_leaves_mtl(thread_mtl_now()); }
};

IN_TURN_MTL int find_own_mtl(ulong address, uint thread) {
  __global context_mtl *c = checks_mtl;
  uint count = c->thread[thread].own;
  for (uint k = count < MOST_OWN_MTL ? count : MOST_OWN_MTL; k-- > 0;) {
    __global own_mtl *own = &c->own[thread][k];
    if (address + own->fence >= own->start && address < own->end + own->fence) return (int)k;
  }
  return -1;
}
inline finding_mtl own_finding_mtl(uint site, uint thread, uint access, uint size, uint name, uint element, long index, ulong bytes) {
  finding_mtl found = finding_at_mtl(site, thread);
  found.access = access;
  found.size = size;
  found.region = name;
  found.index = index;
  found.extent = bytes;
  found.reached = element;
  return found;
}
// What has a value of an object whose initialisers have run, or that was assigned.
IN_TURN_MTL void own_filled_in_turn_mtl(ulong address, uint bytes, uint thread) {
  checks_mtl->thread[thread].copies += 1;
  int at = find_own_mtl(address, thread);
  if (at < 0) return;
  __global own_mtl *own = &checks_mtl->own[thread][at];
  if (own->known == 0 || address < own->start || address + bytes > own->end) return;
  note_values_mtl(own->known, own->number, own->start, address - own->start, address + bytes - own->start);
}
template <typename T> inline T &own_filled_mtl(T &object) {
  if constexpr (__is_class(bare_mtl<T>) || __is_union(bare_mtl<T>)) own_filled_in_turn_mtl((ulong)&object, sizeof(T), thread_mtl_now());
  return object;
}
// Whether a read of the part that ``offset``, ``unit`` and ``mask`` describe finds no value at all; writes give it one.
IN_TURN_MTL bool watch_mtl(__private uchar *known, uint number, uint offset, uint unit, uint mask, uint access) {
  bool none = true;
  for (uint k = 0; (mask >> k) != 0; k++) {
    if (((mask >> k) & 1) == 0) continue;
    uint first = offset + k * unit;
    for (uint flag = first / number; flag * number < first + unit; flag++) {
      none = none && known[flag] == 0;
      if (access != READ_MTL && access != LEND_MTL && access != PLACE_MTL) known[flag] = 1;
    }
  }
  return none && (access == READ_MTL || access == UPDATE_MTL);
}
// What was found to have no value gets zeros, so that what is made of it is not found, too.
inline void clear_part_mtl(ulong object, uint offset, uint unit, uint mask) {
  for (uint k = 0; (mask >> k) != 0; k++) {
    for (uint b = 0; b < unit && (mask >> k & 1) != 0; b++) ((__private uchar *)object)[offset + k * unit + b] = 0;
  }
}
IN_TURN_MTL void no_value_mtl(ulong object, uint offset, ulong packed, uint size, uint part, uint bytes, uint name, uint element, uint site, uint thread) {
  finding_mtl found = own_finding_mtl(site, thread, (uint)(packed >> 52) & 15, size, name, element, offset, bytes);
  found.index += part;
  bool is_suspected = suspected_mtl(found);
  found.index -= part;
  if (!is_suspected) return;
  report_mtl(UNINITIALISED_MTL, found);
  clear_part_mtl(object, part, (uint)packed, (uint)(packed >> 32) & 255);
}
// The check of an access through a pointer; what is in no variable of the table is let pass.
IN_TURN_MTL ulong own_check_mtl(ulong address, ulong origin, uint size, uint offset, ulong packed, uint site, uint thread) {
  __global context_mtl *c = checks_mtl;
  uint unit = (uint)packed, mask = (uint)(packed >> 32) & 255, access = (uint)(packed >> 52) & 15;
  int at = find_own_mtl(origin, thread);
  if (at < 0 && origin != address) at = find_own_mtl(address, thread);
  if (at < 0) return address;
  __global own_mtl *own = &c->own[thread][at];
  if (address < own->start || address + size > own->end) {
    // Without a fence what ends here may be meant.
    if (own->fence == 0 && address < own->start) return address;
    report_mtl(BOUNDS_MTL, own_finding_mtl(site, thread, access, size, own->name, own->element, (long)(address - own->start), own->end - own->start));
    return spare_mtl(thread, size);
  }
  if (own->known == 0) return address;
  if (watch_mtl((__private uchar *)own->known, own->number, (uint)(address - own->start) + offset, unit, mask, access)) {
    no_value_mtl(address, (uint)(address - own->start), packed, size, offset, (uint)(own->end - own->start), own->name, own->element, site, thread);
  }
  return address;
}
// An access to a part of a watched variable by its name.
template <uint K, typename P, typename T, uint G, typename B> __attribute__((always_inline)) inline decltype(auto) known_mtl(__private watched_own_mtl<T, G> &own, B &&object, uint name, uint site) {
  typedef watched_own_mtl<T, G> W;
  typedef described_mtl<typename referred_mtl<B>::type, K, P, true> a;
  if constexpr (W::flags != 0 && a::is_access) {
    ulong offset = (ulong)&object - (ulong)&own.object;
    if (offset < sizeof(T)) {
      bool unknown;
      // One number: no need of loops.
      if constexpr (a::part::mask == 1 && a::part::unit == W::number) {
        __private uchar *flag = own.known + (offset + a::offset) / W::number;
        unknown = (K == READ_MTL || K == UPDATE_MTL) && *flag == 0;
        if constexpr (K != READ_MTL) *flag = 1;
      } else {
        unknown = watch_mtl(own.known, W::number, (uint)offset + a::offset, a::part::unit, a::part::mask, K);
      }
      if (unknown) no_value_mtl((ulong)&object, (uint)offset, a::packed, a::size, a::offset, sizeof(T), name, element_mtl<T>::bytes, site, thread_mtl_now());
    }
  }
  return (object);
}
// An access through a reference, or to a member of the object that a function was called for.
template <uint K, typename P, typename B> __attribute__((always_inline)) inline decltype(auto) lent_mtl(B &&object, uint site) {
  typedef typename referred_mtl<B>::type L;
  if constexpr (space_mtl<L>::value == THREAD_MTL || space_mtl<L>::value == ANY_MTL) checked_mtl<L, K, P, true>((ulong)&object, (ulong)&object, site);
  return (object);
}
// A matrix that a calculation reads, of which each column counts.
template <typename B> __attribute__((always_inline)) inline decltype(auto) columns_mtl(B &&object, uint site) {
  typedef typename referred_mtl<B>::type L;
  if constexpr (space_mtl<L>::value == THREAD_MTL || space_mtl<L>::value == ANY_MTL) {
    typedef typename referred_mtl<decltype((object.columns[0]))>::type C;
    for (uint k = 0; k < contained_mtl<bare_mtl<L>>::count; k++) checked_mtl<C, READ_MTL, path_mtl<>, true>((ulong)&object.columns[k], (ulong)&object.columns[k], site);
  }
  return (object);
}

//@ no_own_variables_mtl : checks_mtl
// Of a program that has no variables in the table.
ulong own_check_mtl(ulong address, ulong origin, uint size, uint offset, ulong packed, uint site, uint thread) { return address; }
template <typename T> inline T &own_filled_mtl(T &object) { return object; }
template <typename B> __attribute__((always_inline)) inline decltype(auto) columns_mtl(B &&object, uint site) { return (object); }
template <uint K, typename P, typename B> __attribute__((always_inline)) inline decltype(auto) lent_mtl(B &&object, uint site) { return (object); }
