// <metal_cooperative_tensor> of Metal 4: a matrix of which each thread that works on it has some elements.
#pragma once
#include <metal_tensor>
namespace metal {
// Who works on a tensor together.
template <size_t Size> struct execution_threads {
  static_assert(Size == 1, "only execution_threads<1> is supported");
  static constexpr size_t simdgroups() { return 0; }
  static constexpr ushort threads() { return 1; }
};
template <size_t Size> struct execution_simdgroups {
  static_assert(Size != 0, "execution_simdgroups<0> is not supported");
  static constexpr size_t simdgroups() { return Size; }
  static constexpr ushort threads() { return 32 * Size; }
};
using execution_thread = execution_threads<1>;
using execution_simdgroup = execution_simdgroups<1>;

// Which elements of ``Rows`` x ``Columns`` a thread has. Where both are multiples of 16, squares of 16 x 16 go to the
// simdgroups in turn, row by row; a thread has four neighbours of two rows of one, as in the registers of Apple's GPUs.
// Otherwise elements go to the threads in turn.
template <int Rows, int Columns, class Scope> struct layout_of_matrix {
  typedef Scope scope;
  static constexpr int rows() { return Rows; }
  static constexpr int columns() { return Columns; }
  static constexpr bool has_squares() { return Scope::simdgroups() != 0 && Rows % 16 == 0 && Columns % 16 == 0; }
  static constexpr int squares() { return Rows / 16 * (Columns / 16); }
  static constexpr ushort capacity() {
    int groups = has_squares() ? int(Scope::simdgroups()) : 1;
    return has_squares() ? (squares() + groups - 1) / groups * 8 : (Rows * Columns + Scope::threads() - 1) / Scope::threads();
  }
  static ushort thread_index() {
    if constexpr (Scope::simdgroups() == 0) return 0;
    else if constexpr (Scope::simdgroups() == 1) return ushort(__metal_get_thread_index_in_simdgroup());
    else return ushort((__metal_get_simdgroup_index_in_threadgroup() % Scope::simdgroups()) * 32 + __metal_get_thread_index_in_simdgroup());
  }
  static int square(ushort i, ushort of_thread) { return i / 8 * int(Scope::simdgroups()) + of_thread / 32; }
  static bool is_valid(ushort i, ushort of_thread) {
    if constexpr (has_squares()) return square(i, of_thread) < squares();
    else return i * Scope::threads() + of_thread < Rows * Columns;
  }
  static int row(ushort i, ushort of_thread) {
    if constexpr (has_squares()) {
      int lane = of_thread % 32;
      return square(i, of_thread) / (Columns / 16) * 16 + ((lane >> 2 & 4) | (lane >> 1 & 3)) + i / 4 % 2 * 8;
    } else {
      return (i * Scope::threads() + of_thread) / Columns;
    }
  }
  static int column(ushort i, ushort of_thread) {
    if constexpr (has_squares()) {
      int lane = of_thread % 32;
      return square(i, of_thread) % (Columns / 16) * 16 + ((lane >> 2 & 2) | (lane & 1)) * 4 + i % 4;
    } else {
      return (i * Scope::threads() + of_thread) % Columns;
    }
  }
  template <class Index> static array<Index, 2> place(ushort i) {
    ushort of_thread = thread_index();
    return {Index(column(i, of_thread)), Index(row(i, of_thread))};
  }
};
// One number for each row, or each column, of a matrix: a thread has those of its elements, so that it has some of them
// more than once.
template <class Matrix, bool of_rows> struct layout_of_sums {
  typedef typename Matrix::scope scope;
  static constexpr ushort capacity() { return Matrix::capacity(); }
  static bool is_valid(ushort i, ushort of_thread) { return Matrix::is_valid(i, of_thread); }
  static ushort thread_index() { return Matrix::thread_index(); }
  template <class Index> static array<Index, 1> place(ushort i) {
    ushort of_thread = thread_index();
    return {Index(of_rows ? Matrix::row(i, of_thread) : Matrix::column(i, of_thread))};
  }
};
// Whether threads have at each index of one tensor what belongs to that of the other.
template <class Layout, class Other> struct shares_places : is_same<Layout, Other> {};
template <class Matrix, bool of_rows> struct shares_places<layout_of_sums<Matrix, of_rows>, Matrix> : true_type {};

template <class element_mtl, class Extents, class Layout> struct cooperative_tensor {
  typedef element_mtl element_type;
  typedef element_mtl value_type;
  typedef Extents extents_type;
  typedef typename Extents::index_type index_type;
  typedef Layout layout;
  typedef ushort thread_index_type;
  element_mtl values[Layout::capacity()];

  struct iterator {
    typedef Layout layout;
    thread cooperative_tensor *owner;
    ushort at;
    auto operator*() const -> thread element_mtl & { return owner->values[at]; }
    thread iterator &operator++() { at += 1; return *this; }
    iterator operator++(int) { iterator before = *this; at += 1; return before; }
    bool operator==(iterator other) const { return at == other.at; }
    bool operator!=(iterator other) const { return at != other.at; }
    array<index_type, Extents::rank()> get_multidimensional_index() const { return Layout::template place<index_type>(at); }
    bool is_valid_element() const { return Layout::is_valid(at, Layout::thread_index()); }
  };
  typedef iterator const_iterator;

  static constexpr ushort get_capacity() { return Layout::capacity(); }
  static constexpr size_t get_rank() { return Extents::rank(); }
  bool is_valid_element(ushort i) const { return Layout::is_valid(i, Layout::thread_index()); }
  bool get_mask(ushort i) const { return is_valid_element(i); }
  array<index_type, Extents::rank()> get_multidimensional_index(ushort i) const { return Layout::template place<index_type>(i); }
  array<index_type, Extents::rank()> get_multidimensional_index(iterator it) const { return Layout::template place<index_type>(it.at); }
  thread element_mtl &operator[](ushort i) thread { return values[i]; }
  const thread element_mtl &operator[](ushort i) const thread { return values[i]; }
  iterator begin() thread { return {this, 0}; }
  iterator end() thread { return {this, Layout::capacity()}; }
  iterator get_iterator(ushort i) thread { return {this, i}; }
  // What belongs to the element that ``it`` is at, such as the sum of its row.
  template <class Iterator> iterator map_iterator(Iterator it) thread {
    static_assert(shares_places<Layout, typename Iterator::layout>::value, "the tensors' elements lie with other threads; see is_iterator_compatible");
    return {this, it.at};
  }
  template <class Tensor> void load(Tensor source) thread {
    for (ushort i = 0; i < Layout::capacity(); ++i) {
      auto place = get_multidimensional_index(i);
      values[i] = is_valid_element(i) && is_inside(source, place) ? element_mtl(source.at(place)) : element_mtl(0);
    }
  }
  template <class Tensor> void store(Tensor destination) const thread {
    for (ushort i = 0; i < Layout::capacity(); ++i) {
      auto place = get_multidimensional_index(i);
      if (is_valid_element(i) && is_inside(destination, place)) destination.at(place) = typename Tensor::value_type(values[i]);
    }
  }
  template <class Tensor> static bool is_inside(Tensor where, array<index_type, Extents::rank()> place) { return is_inside(where, place, typename Extents::dimensions()); }
  template <class Tensor, size_t... I> static bool is_inside(Tensor where, array<index_type, Extents::rank()> place, dimensions_mtl<I...>) {
    return ((place[I] < index_type(where.get_extent(I))) && ... && true);
  }
};
}
