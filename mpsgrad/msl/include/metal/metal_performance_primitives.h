// <MetalPerformancePrimitives/MetalPerformancePrimitives.h> of Metal 4: products of matrices by threads that work
// together. An element of a product is summed by one thread, from the first term to the last: the same bits each time.
#pragma once
#include <metal_cooperative_tensor>
namespace mpp {
namespace tensor_ops {
template <class T> struct dynamic_length { static constexpr constant T value = metal::numeric_limits<T>::max(); };
template <class T> constexpr constant T dynamic_length_v = metal::numeric_limits<T>::max();

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int rows, int columns, int terms = -1, bool left_is_transposed = false, bool right_is_transposed = false, bool is_relaxed = false, mode how = mode::multiply)
      : m(rows), n(columns), k(terms), transpose_left(left_is_transposed), transpose_right(right_is_transposed), relaxed_precision(is_relaxed), matmul_mode(how) {}
  // All of it in one number, which may be the argument of a template.
  constexpr operator ulong() const {
    bool is_dynamic = k <= 0 || k > 0x7fffff;
    return ulong(m) | ulong(n) << 16 | ulong(is_dynamic ? 0 : k) << 32 | ulong(transpose_left) << 56 | ulong(transpose_right) << 57 | ulong(matmul_mode == mode::multiply_accumulate) << 58;
  }
};

enum class reduction_operation { sum, max, min };
template <class T> struct reduction_operation_identity {
  static constexpr constant T sum_identity = T(0);
  static constexpr constant T max_identity = metal::numeric_limits<T>::lowest();
  static constexpr constant T min_identity = metal::numeric_limits<T>::max();
};

// What products of two types are summed in.
template <class Left, class Right> struct sum_of_products { typedef float type; };
template <> struct sum_of_products<char, char> { typedef int type; };
template <> struct sum_of_products<char, uchar> { typedef int type; };
template <> struct sum_of_products<uchar, char> { typedef int type; };
template <> struct sum_of_products<uchar, uchar> { typedef int type; };

// An operand in memory. ``step`` leads to the next element along a dimension.
template <class Tensor> struct operand {
  typedef typename Tensor::value_type value_type;
  Tensor whole;
  operand(Tensor from) : whole(from) {}
  int extent(int dimension) { return whole.get_extent(dimension); }
  int step(int dimension) { return whole.get_stride(dimension); }
  auto at(int column, int row) { return &whole.at(metal::array<int, 2>{column, row}); }
};
// An operand that threads have together: each gets all of it.
template <class element_mtl, class Extents, class Layout> struct operand<metal::cooperative_tensor<element_mtl, Extents, Layout>> {
  static_assert(Layout::scope::simdgroups() <= 1, "cooperative operands are those of one simdgroup");
  typedef element_mtl value_type;
  element_mtl all[Layout::rows() * Layout::columns()];
  operand(metal::cooperative_tensor<element_mtl, Extents, Layout> from) {
    for (ushort lane = 0; lane < Layout::scope::threads(); ++lane)
      for (ushort i = 0; i < Layout::capacity(); ++i) {
        element_mtl value = from.values[i];
        if constexpr (Layout::scope::threads() > 1) value = metal::simd_broadcast(value, lane);
        if (Layout::is_valid(i, lane)) all[Layout::row(i, lane) * Layout::columns() + Layout::column(i, lane)] = value;
      }
  }
  int extent(int dimension) { return dimension == 0 ? Layout::columns() : Layout::rows(); }
  int step(int dimension) { return dimension == 0 ? 1 : Layout::columns(); }
  thread element_mtl *at(int column, int row) { return all + row * Layout::columns() + column; }
};

template <class Tensor> struct is_cooperative : metal::false_type {};
template <class element_mtl, class Extents, class Layout> struct is_cooperative<metal::cooperative_tensor<element_mtl, Extents, Layout>> : metal::true_type {};

template <ulong Descriptor, class Scope, class... Options> class matmul2d {
 public:
  typedef Scope scope;
  static constexpr int rows() { return int(Descriptor & 0xffff); }
  static constexpr int columns() { return int(Descriptor >> 16 & 0xffff); }
  static constexpr int terms() { return int(Descriptor >> 32 & 0xffffff); }
  static constexpr bool left_is_transposed() { return (Descriptor >> 56 & 1) != 0; }
  static constexpr bool right_is_transposed() { return (Descriptor >> 57 & 1) != 0; }
  static constexpr int left_rows() { return left_is_transposed() ? terms() : rows(); }
  static constexpr int left_columns() { return left_is_transposed() ? rows() : terms(); }
  static constexpr int right_rows() { return right_is_transposed() ? columns() : terms(); }
  static constexpr int right_columns() { return right_is_transposed() ? terms() : columns(); }
  static constexpr bool adds() { return (Descriptor >> 58 & 1) != 0; }

  template <class Left, class Right, class Element, class Index = int> using cooperative_tensor_left_input_t =
      metal::cooperative_tensor<Left, metal::dextents<Index, 2>, metal::layout_of_matrix<left_rows(), left_columns(), Scope>>;
  template <class Left, class Right, class Element, class Index = int> using cooperative_tensor_right_input_t =
      metal::cooperative_tensor<Right, metal::dextents<Index, 2>, metal::layout_of_matrix<right_rows(), right_columns(), Scope>>;
  template <class Left, class Right, class Element, class Index = int> using cooperative_tensor_destination_t =
      metal::cooperative_tensor<Element, metal::dextents<Index, 2>, metal::layout_of_matrix<rows(), columns(), Scope>>;
  template <class Left, class Right, class Element, class Index = int> using cooperative_tensor_row_reduction_destination_t =
      metal::cooperative_tensor<Element, metal::dextents<Index, 1>, metal::layout_of_sums<metal::layout_of_matrix<rows(), columns(), Scope>, true>>;
  template <class Left, class Right, class Element, class Index = int> using cooperative_tensor_column_reduction_destination_t =
      metal::cooperative_tensor<Element, metal::dextents<Index, 1>, metal::layout_of_sums<metal::layout_of_matrix<rows(), columns(), Scope>, false>>;

  template <class Left, class Right, class Element, class Index = int> cooperative_tensor_left_input_t<Left, Right, Element, Index> get_left_input_cooperative_tensor() const { return {}; }
  template <class Left, class Right, class Element, class Index = int> cooperative_tensor_right_input_t<Left, Right, Element, Index> get_right_input_cooperative_tensor() const { return {}; }
  template <class Left, class Right, class Element, class Index = int> cooperative_tensor_destination_t<Left, Right, Element, Index> get_destination_cooperative_tensor() const { return {}; }
  template <class Left, class Right, class Element, class Index = int> cooperative_tensor_row_reduction_destination_t<Left, Right, Element, Index> get_row_reduction_destination_cooperative_tensor() const { return {}; }
  template <class Left, class Right, class Element, class Index = int> cooperative_tensor_column_reduction_destination_t<Left, Right, Element, Index> get_column_reduction_destination_cooperative_tensor() const { return {}; }

  // Operands of the elements of another tensor, such as the sums of another product.
  template <class Left, class Right, class Element, class Index = int, class Source, class Extents, class Layout> cooperative_tensor_left_input_t<Left, Right, Element, Index> get_left_input_cooperative_tensor(const thread metal::cooperative_tensor<Source, Extents, Layout> &source) const {
    return converted<cooperative_tensor_left_input_t<Left, Right, Element, Index>>(source);
  }
  template <class Left, class Right, class Element, class Index = int, class Source, class Extents, class Layout> cooperative_tensor_right_input_t<Left, Right, Element, Index> get_right_input_cooperative_tensor(const thread metal::cooperative_tensor<Source, Extents, Layout> &source) const {
    return converted<cooperative_tensor_right_input_t<Left, Right, Element, Index>>(source);
  }
  template <class Left, class Right, class Element, class Source, class Extents, class Layout> bool is_compatible_as_left_input(const thread metal::cooperative_tensor<Source, Extents, Layout> &) const {
    return Layout::scope::simdgroups() <= 1 && Layout::rows() == left_rows() && Layout::columns() == left_columns();
  }
  template <class Left, class Right, class Element, class Source, class Extents, class Layout> bool is_compatible_as_right_input(const thread metal::cooperative_tensor<Source, Extents, Layout> &) const {
    return Layout::scope::simdgroups() <= 1 && Layout::rows() == right_rows() && Layout::columns() == right_columns();
  }

  // What lies outside of an operand is zero.
  template <class Left, class Right, class Destination> void run(thread Left &left, thread Right &right, thread Destination &destination) const {
    constexpr bool are_cooperative = is_cooperative<Left>::value && is_cooperative<Right>::value && is_cooperative<Destination>::value;
    constexpr bool are_of_squares = rows() % 16 == 0 && columns() % 16 == 0 && terms() % 16 == 0 && terms() != 0;
    if constexpr (are_cooperative && are_of_squares && Scope::simdgroups() == 1) run_by_squares(left, right, destination);
    else run_by_elements(left, right, destination);
  }

 private:
  template <class Four, class Value> static Four four(const thread Value *values) { return Four(values[0], values[1], values[2], values[3]); }
  // Threads exchange elements of squares that they have in registers.
  template <class Left, class Right, class Destination> static void run_by_squares(thread Left &left, thread Right &right, thread Destination &destination) {
    typedef typename sum_of_products<typename Left::value_type, typename Right::value_type>::type Sum;
    typedef metal::vec<Sum, 4> Four;
    constexpr int down = rows() / 16, across = columns() / 16, deep = terms() / 16;
    for (int square = 0; square < down * across; ++square) {
      int y = square / across, x = square % across;
      Four upper = 0, lower = 0;
      for (int k = 0; k < deep; ++k) {
        const thread auto *a = left.values + 8 * (left_is_transposed() ? k * down + y : y * deep + k);
        const thread auto *b = right.values + 8 * (right_is_transposed() ? x * deep + k : k * across + x);
        Four a_upper = four<Four>(a), a_lower = four<Four>(a + 4), b_upper = four<Four>(b), b_lower = four<Four>(b + 4);
        if constexpr (left_is_transposed()) turn_square_mtl(a_upper, a_lower);
        if constexpr (right_is_transposed()) turn_square_mtl(b_upper, b_lower);
        add_square_product_mtl(upper, lower, a_upper, a_lower, b_upper, b_lower);
      }
      for (ushort i = 0; i < 4; ++i) {
        put(destination, square * 8 + i, 0, 0, upper[i]);
        put(destination, square * 8 + 4 + i, 0, 0, lower[i]);
      }
    }
  }
  template <class Left, class Right, class Destination> static void run_by_elements(thread Left &left, thread Right &right, thread Destination &destination) {
    operand<Left> a(left);
    operand<Right> b(right);
    constexpr int along_a = left_is_transposed() ? 1 : 0, along_b = right_is_transposed() ? 0 : 1;
    int count = metal::min(a.extent(along_a), b.extent(along_b));
    if (terms() != 0) count = metal::min(count, terms());
    int row_end = a.extent(1 - along_a), column_end = b.extent(1 - along_b);
    if (row_end <= 0 || column_end <= 0) count = 0;
    typedef metal::layout_of_matrix<rows(), columns(), Scope> Layout;
    typedef typename sum_of_products<typename operand<Left>::value_type, typename operand<Right>::value_type>::type Sum;
    ushort of_thread = Layout::thread_index();
    int step_a = a.step(along_a), step_b = b.step(along_b);
    if constexpr (!is_cooperative<Destination>::value && Scope::simdgroups() != 0 && rows() % 8 == 0 && columns() % 32 == 0 && !right_is_transposed()) {
      // Neighbouring threads have neighbouring columns, of eight rows.
      if (columns() <= column_end && b.step(0) == 1 && count > 0) {
        int group = int(__metal_get_simdgroup_index_in_threadgroup() % Scope::simdgroups()), lane = int(__metal_get_thread_index_in_simdgroup());
        for (int block = group; block < rows() / 8 * (columns() / 32); block += int(Scope::simdgroups())) {
          int row = block / (columns() / 32) * 8, column = block % (columns() / 32) * 32;
          if (row >= row_end) continue;
          Sum sums[8] = {};
          auto first = line(a, row, row_end, left_is_transposed()), second = line(a, row + 1, row_end, left_is_transposed());
          auto third = line(a, row + 2, row_end, left_is_transposed()), fourth = line(a, row + 3, row_end, left_is_transposed());
          auto fifth = line(a, row + 4, row_end, left_is_transposed()), sixth = line(a, row + 5, row_end, left_is_transposed());
          auto seventh = line(a, row + 6, row_end, left_is_transposed()), eighth = line(a, row + 7, row_end, left_is_transposed());
          auto right = b.at(column, 0);
          for (int k = 0; k < count; ++k) {
            int of_a = k * step_a;
            Sum value = Sum(right[k * step_b + lane]);
            sums[0] += Sum(first[of_a]) * value;
            sums[1] += Sum(second[of_a]) * value;
            sums[2] += Sum(third[of_a]) * value;
            sums[3] += Sum(fourth[of_a]) * value;
            sums[4] += Sum(fifth[of_a]) * value;
            sums[5] += Sum(sixth[of_a]) * value;
            sums[6] += Sum(seventh[of_a]) * value;
            sums[7] += Sum(eighth[of_a]) * value;
          }
          for (ushort k = 0; k < 8; ++k) put(destination, k, column + lane, row + k, sums[k]);
        }
        return;
      }
    }
    if constexpr (Layout::has_squares()) {
      // Eight elements, four neighbours in each of two rows, share what they read.
      for (ushort i = 0; i < Layout::capacity(); i += 8) {
        if (!Layout::is_valid(i, of_thread)) continue;
        int row = Layout::row(i, of_thread), column = Layout::column(i, of_thread);
        Sum sums[8] = {};
        if (count > 0) {
          auto upper = line(a, row, row_end, left_is_transposed()), lower = line(a, row + 8, row_end, left_is_transposed());
          auto first = line(b, column, column_end, !right_is_transposed()), second = line(b, column + 1, column_end, !right_is_transposed());
          auto third = line(b, column + 2, column_end, !right_is_transposed()), fourth = line(b, column + 3, column_end, !right_is_transposed());
          for (int k = 0; k < count; ++k) {
            int of_a = k * step_a, of_b = k * step_b;
            Sum high = Sum(upper[of_a]), low = Sum(lower[of_a]);
            Sum right0 = Sum(first[of_b]), right1 = Sum(second[of_b]), right2 = Sum(third[of_b]), right3 = Sum(fourth[of_b]);
            sums[0] += high * right0;
            sums[1] += high * right1;
            sums[2] += high * right2;
            sums[3] += high * right3;
            sums[4] += low * right0;
            sums[5] += low * right1;
            sums[6] += low * right2;
            sums[7] += low * right3;
          }
        }
        for (ushort k = 0; k < 8; ++k) {
          int y = row + k / 4 * 8, x = column + k % 4;
          put(destination, i + k, x, y, y < row_end && x < column_end ? sums[k] : Sum(0));
        }
      }
    } else {
      for (ushort i = 0; i < Layout::capacity(); ++i) {
        if (!Layout::is_valid(i, of_thread)) continue;
        int row = Layout::row(i, of_thread), column = Layout::column(i, of_thread);
        Sum sum = 0;
        if (row < row_end && column < column_end && count > 0) {
          auto left_line = line(a, row, row_end, left_is_transposed());
          auto right_line = line(b, column, column_end, !right_is_transposed());
          for (int k = 0; k < count; ++k) sum += Sum(left_line[k * step_a]) * Sum(right_line[k * step_b]);
        }
        put(destination, i, column, row, sum);
      }
    }
  }
  template <class Made, class Source> static Made converted(Source source) {
    operand<Source> all(source);
    typedef typename Made::layout Layout;
    ushort of_thread = Layout::thread_index();
    Made made;
    for (ushort i = 0; i < Layout::capacity(); ++i) {
      int row = Layout::row(i, of_thread), column = Layout::column(i, of_thread);
      bool is_there = Layout::is_valid(i, of_thread) && row < all.extent(1) && column < all.extent(0);
      made.values[i] = is_there ? typename Made::element_type(*all.at(column, row)) : typename Made::element_type(0);
    }
    return made;
  }
  // Where a row begins, or a column; another one for those outside.
  template <class Operand> static auto line(thread Operand &of, int index, int end, bool is_column) {
    int inside = index < end ? index : 0;
    return is_column ? of.at(inside, 0) : of.at(0, inside);
  }
  template <class element_mtl, class Extents, class Layout, class Sum> static void put(thread metal::cooperative_tensor<element_mtl, Extents, Layout> &destination, ushort i, int, int, Sum sum) {
    destination.values[i] = element_mtl(adds() ? Sum(destination.values[i]) + sum : sum);
  }
  template <class element_mtl, class Extents, class Kind, class Sum> static void put(thread metal::tensor<element_mtl, Extents, Kind> &destination, ushort, int column, int row, Sum sum) {
    if (column >= int(destination.get_extent(0)) || row >= int(destination.get_extent(1))) return;
    metal::array<int, 2> place = {column, row};
    destination.at(place) = typename metal::tensor<element_mtl, Extents, Kind>::value_type(adds() ? Sum(destination.at(place)) + sum : sum);
  }
};

// Sums, or what is largest or smallest, of each row or column.
template <bool of_rows, class element_mtl, class Extents, class Layout, class SumExtents, class SumLayout> void reduce(
    metal::cooperative_tensor<element_mtl, Extents, Layout> source, thread metal::cooperative_tensor<element_mtl, SumExtents, SumLayout> &destination, reduction_operation how, element_mtl identity) {
  operand<metal::cooperative_tensor<element_mtl, Extents, Layout>> all(source);
  ushort of_thread = Layout::thread_index();
  for (ushort i = 0; i < SumLayout::capacity(); ++i) {
    if (!Layout::is_valid(i, of_thread)) continue;
    int row = Layout::row(i, of_thread), column = Layout::column(i, of_thread);
    element_mtl found = identity;
    for (int k = 0; k < (of_rows ? Layout::columns() : Layout::rows()); ++k) {
      element_mtl value = of_rows ? *all.at(k, row) : *all.at(column, k);
      if (how == reduction_operation::sum) found += value;
      else if (how == reduction_operation::max ? value > found : value < found) found = value;
    }
    destination.values[i] = found;
  }
}
template <class element_mtl, class Extents, class SumExtents, class Layout, class SumLayout> void reduce_rows(
    thread metal::cooperative_tensor<element_mtl, Extents, Layout> &source, thread metal::cooperative_tensor<element_mtl, SumExtents, SumLayout> &destination,
    reduction_operation how = reduction_operation::sum, element_mtl identity = element_mtl(0)) {
  reduce<true>(source, destination, how, identity);
}
template <class element_mtl, class Extents, class SumExtents, class Layout, class SumLayout> void reduce_columns(
    thread metal::cooperative_tensor<element_mtl, Extents, Layout> &source, thread metal::cooperative_tensor<element_mtl, SumExtents, SumLayout> &destination,
    reduction_operation how = reduction_operation::sum, element_mtl identity = element_mtl(0)) {
  reduce<false>(source, destination, how, identity);
}
template <class Source, class Destination> bool is_iterator_compatible(const thread Source &, const thread Destination &) {
  return metal::shares_places<typename Destination::layout, typename Source::layout>::value;
}
}
}
