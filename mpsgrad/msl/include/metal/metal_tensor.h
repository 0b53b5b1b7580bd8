// <metal_tensor> of Metal 4: tensors over memory that a kernel has pointers to. The first index runs fastest.
#pragma once
namespace metal {
constexpr constant size_t dynamic_extent = ~size_t(0);

// The numbers of the dimensions. Where each index is a number, a tensor is in registers, and threads know what they have in
// common.
template <size_t... I> struct dimensions_mtl {};
template <size_t Rank, size_t... I> struct dimensions_of_mtl : dimensions_of_mtl<Rank - 1, Rank - 1, I...> {};
template <size_t... I> struct dimensions_of_mtl<0, I...> { typedef dimensions_mtl<I...> type; };

// The lengths of a tensor's dimensions: those that are not dynamic are part of the type.
template <class Index, size_t... Lengths> struct extents {
  typedef Index index_type;
  typedef size_t rank_type;
  typedef typename dimensions_of_mtl<sizeof...(Lengths)>::type dimensions;
  Index lengths[sizeof...(Lengths)];
  constexpr extents() : lengths{(Lengths == dynamic_extent ? Index(0) : Index(Lengths))...} {}
  template <class First, class... Others> constexpr extents(First first, Others... others) : extents(dimensions(), first, others...) {
    constexpr size_t given_count = 1 + sizeof...(Others);
    static_assert(given_count == rank() || given_count == rank_dynamic(), "extents takes all lengths, or those that are dynamic");
  }
  static constexpr size_t rank() { return sizeof...(Lengths); }
  static constexpr size_t rank_dynamic() { return ((Lengths == dynamic_extent ? 1 : 0) + ... + 0); }
  static constexpr size_t static_extent(size_t i) {
    size_t all[sizeof...(Lengths)] = {Lengths...};
    return all[i];
  }
  constexpr Index extent(size_t i) const { return extent(i, dimensions()); }

 private:
  // The length of the dimension K, of all that are given or of those that are dynamic.
  template <size_t K, size_t At, class First, class... Others> static constexpr Index given(First first, Others... others) {
    constexpr bool is_left = sizeof...(Others) + 1 + At != rank() && static_extent(At) != dynamic_extent;
    if constexpr (K == At) return is_left ? Index(static_extent(At)) : Index(first);
    else if constexpr (is_left) return given<K, At + 1>(first, others...);
    else if constexpr (sizeof...(Others) == 0) return Index(static_extent(K));
    else return given<K, At + 1>(others...);
  }
  template <size_t... I, class... Given> constexpr extents(dimensions_mtl<I...>, Given... all) : lengths{given<I, 0>(all...)...} {}
  template <size_t... I> constexpr Index extent(size_t i, dimensions_mtl<I...>) const { return ((i == I ? lengths[I] : Index(0)) + ... + Index(0)); }
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
  typedef typename Extents::dimensions dimensions;
  element_mtl *first;
  Extents lengths;
  index_type steps[Extents::rank()];
  tensor(constant passed_tensor_mtl<element_mtl, Extents> &passed) : tensor(passed, dimensions()) {}
  tensor(element_mtl *pointer, Extents e) : tensor(pointer, e, dimensions()) { require_inline(); }
  tensor(element_mtl *pointer, Extents e, array<index_type, Extents::rank()> strides) : tensor(pointer, e, strides, dimensions()) { require_inline(); }
  static void require_inline() { static_assert(!is_same_v<Descriptor, tensor_handle>, "a tensor of a pointer is a tensor_inline; only the host makes others"); }
  static constexpr size_t get_rank() { return Extents::rank(); }
  index_type get_extent(size_t i) const { return lengths.extent(i); }
  index_type get_stride(size_t i) const { return step(i, dimensions()); }
  Extents get_extents() const { return lengths; }
  element_mtl *data_handle() const { return first; }
  template <class Other> element_mtl &operator[](array<Other, Extents::rank()> place) const { return at(place); }
  template <class Other> element_mtl &at(array<Other, Extents::rank()> place) const { return element(place, dimensions()); }
  // What begins at ``origin``: as long as is said, or all that follows.
  template <size_t... Lengths, class... Origin> auto slice(Origin... origin) const {
    static_assert(sizeof...(Origin) == Extents::rank(), "slice takes an index for each dimension");
    static_assert(sizeof...(Lengths) == 0 || sizeof...(Lengths) == Extents::rank(), "slice takes a length for each dimension");
    return part<Lengths...>(dimensions(), origin...);
  }
  template <size_t... Lengths, class... Origin> auto static_slice(Origin... origin) const { return slice<Lengths...>(origin...); }

 private:
  template <size_t... I> tensor(constant passed_tensor_mtl<element_mtl, Extents> &passed, dimensions_mtl<I...>) : first(passed.first), lengths(passed.lengths[I]...), steps{passed.steps[I]...} {}
  template <size_t... I> tensor(element_mtl *pointer, Extents e, dimensions_mtl<I...>) : first(pointer), lengths(e), steps{product<I>(e)...} {}
  template <size_t... I> tensor(element_mtl *pointer, Extents e, array<index_type, Extents::rank()> strides, dimensions_mtl<I...>) : first(pointer), lengths(e), steps{strides[I]...} {}
  template <size_t I> static index_type product(Extents e) {
    if constexpr (I == 0) return 1;
    else return product<I - 1>(e) * e.lengths[I - 1];
  }
  template <size_t... I> index_type step(size_t i, dimensions_mtl<I...>) const { return ((i == I ? steps[I] : index_type(0)) + ... + index_type(0)); }
  template <class Other, size_t... I> element_mtl &element(array<Other, Extents::rank()> place, dimensions_mtl<I...>) const { return first[((long(steps[I]) * long(place[I])) + ... + 0l)]; }
  template <size_t... Lengths, size_t... I, class... Origin> auto part(dimensions_mtl<I...>, Origin... origin) const {
    element_mtl *begin = first + ((long(steps[I]) * long(origin)) + ... + 0l);
    array<index_type, Extents::rank()> strides = {steps[I]...};
    if constexpr (sizeof...(Lengths) == 0) {
      typedef dextents<index_type, Extents::rank()> Left;
      return tensor<element_mtl, Left, tensor_inline>(begin, Left((lengths.lengths[I] - index_type(origin))...), strides);
    } else {
      typedef extents<index_type, Lengths...> Part;
      return tensor<element_mtl, Part, tensor_inline>(begin, Part((Lengths == dynamic_extent ? lengths.lengths[I] - index_type(origin) : index_type(Lengths))...), strides);
    }
  }
};
template <class element_mtl, class Extents> tensor(element_mtl *, Extents) -> tensor<element_mtl, Extents, tensor_inline>;
template <class element_mtl, class Extents, class Index, size_t Rank> tensor(element_mtl *, Extents, array<Index, Rank>) -> tensor<element_mtl, Extents, tensor_inline>;
}
