// <metal_tensor> of Metal 4: tensors over memory that a kernel has pointers to. The first index runs fastest.
#pragma once
namespace metal {
constexpr constant size_t dynamic_extent = ~size_t(0);

// The lengths of a tensor's dimensions: those that are not dynamic are part of the type.
template <class Index, size_t... Lengths> struct extents {
  typedef Index index_type;
  typedef size_t rank_type;
  Index lengths[sizeof...(Lengths)];
  constexpr extents() : lengths{(Lengths == dynamic_extent ? Index(0) : Index(Lengths))...} {}
  template <class First, class... Others> constexpr extents(First first, Others... others) : extents() {
    constexpr size_t given_count = 1 + sizeof...(Others);
    static_assert(given_count == rank() || given_count == rank_dynamic(), "extents takes all lengths, or those that are dynamic");
    Index given[given_count] = {Index(first), Index(others)...};
    size_t next = 0;
    for (size_t i = 0; i < rank(); ++i)
      if (given_count == rank() || static_extent(i) == dynamic_extent) lengths[i] = given[next++];
  }
  static constexpr size_t rank() { return sizeof...(Lengths); }
  static constexpr size_t rank_dynamic() { return ((Lengths == dynamic_extent ? 1 : 0) + ... + 0); }
  static constexpr size_t static_extent(size_t i) {
    size_t all[sizeof...(Lengths)] = {Lengths...};
    return all[i];
  }
  constexpr Index extent(size_t i) const { return lengths[i]; }
};
template <class Index, size_t Rank, size_t... Lengths> struct dynamic_extents_of : dynamic_extents_of<Index, Rank - 1, dynamic_extent, Lengths...> {};
template <class Index, size_t... Lengths> struct dynamic_extents_of<Index, 0, Lengths...> { typedef extents<Index, Lengths...> type; };
template <class Index, size_t Rank> using dextents = typename dynamic_extents_of<Index, Rank>::type;

struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};

template <class T> T value_without_space(T value);

// A tensor as the host passes it.
template <class element_mtl, class Extents> struct passed_tensor_mtl {
  element_mtl *first;
  typename Extents::index_type lengths[Extents::rank()], steps[Extents::rank()];
};

// Steps from one element to the next along each dimension are those of the lengths, unless they are given.
template <class element_mtl, class Extents, class Descriptor = tensor_handle, class... Tags> struct tensor {
  typedef element_mtl element_type;
  typedef decltype(value_without_space(declval<element_mtl &>())) value_type;
  typedef Extents extents_type;
  typedef typename Extents::index_type index_type;
  element_mtl *first;
  Extents lengths;
  array<index_type, Extents::rank()> steps;
  tensor(constant passed_tensor_mtl<element_mtl, Extents> &passed) : first(passed.first) {
    for (size_t i = 0; i < get_rank(); ++i) {
      lengths.lengths[i] = passed.lengths[i];
      steps[i] = passed.steps[i];
    }
  }
  tensor(element_mtl *pointer, Extents e) : first(pointer), lengths(e) {
    require_inline();
    index_type step = 1;
    for (size_t i = 0; i < get_rank(); ++i) {
      steps[i] = step;
      step *= e.extent(i);
    }
  }
  tensor(element_mtl *pointer, Extents e, array<index_type, Extents::rank()> strides) : first(pointer), lengths(e), steps(strides) { require_inline(); }
  static void require_inline() { static_assert(!is_same_v<Descriptor, tensor_handle>, "a tensor of a pointer is a tensor_inline; only the host makes others"); }
  static constexpr size_t get_rank() { return Extents::rank(); }
  index_type get_extent(size_t i) const { return lengths.extent(i); }
  index_type get_stride(size_t i) const { return steps[i]; }
  Extents get_extents() const { return lengths; }
  element_mtl *data_handle() const { return first; }
  template <class Other> element_mtl &operator[](array<Other, Extents::rank()> place) const { return at(place); }
  template <class Other> element_mtl &at(array<Other, Extents::rank()> place) const {
    long offset = 0;
    for (size_t i = 0; i < get_rank(); ++i) offset += long(steps[i]) * long(place[i]);
    return first[offset];
  }
  // What begins at ``origin``: as long as is said, or all that follows.
  template <size_t... Lengths, class... Origin> auto slice(Origin... origin) const {
    static_assert(sizeof...(Origin) == Extents::rank(), "slice takes an index for each dimension");
    long places[sizeof...(Origin)] = {long(origin)...};
    index_type left[sizeof...(Origin)] = {};
    long offset = 0;
    for (size_t i = 0; i < get_rank(); ++i) {
      left[i] = get_extent(i) - index_type(places[i]);
      offset += long(steps[i]) * places[i];
    }
    if constexpr (sizeof...(Lengths) == 0) {
      typedef dextents<index_type, Extents::rank()> Left;
      Left all;
      for (size_t i = 0; i < get_rank(); ++i) all.lengths[i] = left[i];
      return tensor<element_mtl, Left, tensor_inline>(first + offset, all, steps);
    } else {
      static_assert(sizeof...(Lengths) == Extents::rank(), "slice takes a length for each dimension");
      typedef extents<index_type, Lengths...> Part;
      Part part;
      for (size_t i = 0; i < get_rank(); ++i) if (Part::static_extent(i) == dynamic_extent) part.lengths[i] = left[i];
      return tensor<element_mtl, Part, tensor_inline>(first + offset, part, steps);
    }
  }
  template <size_t... Lengths, class... Origin> auto static_slice(Origin... origin) const { return slice<Lengths...>(origin...); }
};
template <class element_mtl, class Extents> tensor(element_mtl *, Extents) -> tensor<element_mtl, Extents, tensor_inline>;
template <class element_mtl, class Extents, class Index, size_t Rank> tensor(element_mtl *, Extents, array<Index, Rank>) -> tensor<element_mtl, Extents, tensor_inline>;
}
