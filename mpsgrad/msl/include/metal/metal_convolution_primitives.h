// Convolutions of <MetalPerformancePrimitives/MetalPerformancePrimitives.h> of Metal 4, by threads that work together. An
// element is summed by one thread, row by row and tap by tap of the window, channels innermost: the same bits each time.
#pragma once
#include <MetalPerformancePrimitives/MPPTensorOpsMatMul2d.h>
namespace mpp {
namespace tensor_ops {
enum class convolution2d_activation_layout { nhwc };
enum class convolution2d_weights_layout { hwio };
enum class convolution2d_cooperative_operand { destination };

struct convolution2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int4 destination_dimensions, source_dimensions;
  int2 kernel_dimensions;
  convolution2d_activation_layout activation_layout;
  convolution2d_weights_layout weights_layout;
  int2 strides, dilations;
  int groups;
  bool relaxed_precision;
  mode conv2d_mode;
  constexpr convolution2d_descriptor(
      int4 of_destination, int4 of_source, int2 window, convolution2d_activation_layout activations = convolution2d_activation_layout::nhwc,
      convolution2d_weights_layout weights = convolution2d_weights_layout::hwio, int2 each = int2(1, 1), int2 apart = int2(1, 1), int parts = 1, bool is_relaxed = false, mode how = mode::multiply)
      : destination_dimensions(of_destination), source_dimensions(of_source), kernel_dimensions(window), activation_layout(activations), weights_layout(weights), strides(each), dilations(apart), groups(parts), relaxed_precision(is_relaxed), conv2d_mode(how) {}
  static constexpr bool fits(int value, int bits) { return value > 0 && value < 1 << bits; }
  // All of it in one number, which may be the argument of a template; its last bit says that there is no such number.
  // Not all compilers know components of constants by their letters.
  constexpr operator ulong() const {
    bool is_there = groups == 1 && fits(destination_dimensions[0], 12) && fits(destination_dimensions[1], 10) && fits(destination_dimensions[2], 10) && fits(destination_dimensions[3], 4) && fits(kernel_dimensions[0], 5) &&
                    fits(kernel_dimensions[1], 5) && fits(strides[0], 4) && fits(strides[1], 4) && fits(dilations[0], 4) && fits(dilations[1], 4);
    ulong tile = ulong(destination_dimensions[0]) | ulong(destination_dimensions[1]) << 12 | ulong(destination_dimensions[2]) << 22 | ulong(destination_dimensions[3]) << 32;
    ulong window = ulong(kernel_dimensions[0]) << 36 | ulong(kernel_dimensions[1]) << 41 | ulong(strides[0]) << 46 | ulong(strides[1]) << 50 | ulong(dilations[0]) << 54 | ulong(dilations[1]) << 58;
    return is_there ? tile | window | ulong(conv2d_mode == mode::multiply_accumulate) << 62 : 1ul << 63;
  }
};

// Which elements of a tile of channels x width x height x images a thread has: eight neighbouring channels of one pixel at
// a time where there are so many.
template <int Channels, int Width, int Height, int Images, class Scope> struct layout_of_tile {
  typedef Scope scope;
  static constexpr int together() { return Channels % 8 == 0 ? 8 : 1; }
  static constexpr int elements() { return Channels * Width * Height * Images; }
  static constexpr ushort capacity() { return (elements() / together() + Scope::threads() - 1) / Scope::threads() * together(); }
  static ushort thread_index() { return metal::layout_of_matrix<1, 1, Scope>::thread_index(); }
  static int element(ushort i, ushort of_thread) { return (i / together() * Scope::threads() + of_thread) * together() + i % together(); }
  static bool is_valid(ushort i, ushort of_thread) { return element(i, of_thread) < elements(); }
  template <class Index> static metal::array<Index, 4> place(ushort i) {
    int at = element(i, thread_index());
    return {Index(at % Channels), Index(at / Channels % Width), Index(at / (Channels * Width) % Height), Index(at / (Channels * Width * Height))};
  }
};

template <ulong Descriptor, class Scope, class... Options> class convolution2d {
  static_assert(Descriptor >> 63 == 0, "only convolutions of one group are supported, of up to 4095 channels, 1023 x 1023 pixels and 15 images, with windows of up to 31 x 31 and strides and dilations of up to 15");
 public:
  typedef Scope scope;
  static constexpr int bits(int first, int count) { return int(Descriptor >> first & ((1ul << count) - 1)); }
  static constexpr int width() { return bits(36, 5); }
  static constexpr int height() { return bits(41, 5); }
  static constexpr bool adds() { return bits(62, 1) != 0; }
  typedef layout_of_tile<bits(0, 12), bits(12, 10), bits(22, 10), bits(32, 4), Scope> layout;
  template <class Activation, class Weights, class Element, class Index = int> using cooperative_tensor_destination_t = metal::cooperative_tensor<Element, metal::dextents<Index, 4>, layout>;
  template <class Activation, class Weights, class Element, class Index = int> cooperative_tensor_destination_t<Activation, Weights, Element, Index> get_destination_cooperative_tensor() const { return {}; }

  convolution2d() : offsets(0) {}
  // Where in the activations the middle of the first window is; of two in the middle the later one.
  void set_offsets(int2 places) { offsets = places; }

  // What lies outside of the activations is zero.
  template <class Activation, class Weights, class Destination> void run(thread Activation &activation, thread Weights &weights, thread Destination &destination) const {
    typedef typename sum_of_products<typename Activation::value_type, typename Weights::value_type>::type Sum;
    constexpr int count = layout::together();
    constexpr int step_x = bits(54, 4), step_y = bits(58, 4);
    int channels = metal::min(int(activation.get_extent(0)), int(weights.get_extent(1)));
    int of_activation = activation.get_stride(0), of_weights = weights.get_stride(1);
    ushort of_thread = layout::thread_index();
    for (ushort i = 0; i < layout::capacity(); i += count) {
      if (!layout::is_valid(i, of_thread)) continue;
      metal::array<int, 4> place = layout::template place<int>(i);
      int last = int(weights.get_extent(0)) - 1, image = place[3];
      int left = place[1] * bits(46, 4) + offsets.x - ((width() - 1) * step_x + 1) / 2;
      int top = place[2] * bits(50, 4) + offsets.y - ((height() - 1) * step_y + 1) / 2;
      Sum sums[count] = {};
      for (int v = 0; v < height() && last >= 0 && image < int(activation.get_extent(3)); ++v) {
        int y = top + v * step_y;
        if (y < 0 || y >= int(activation.get_extent(2))) continue;
        for (int u = 0; u < width(); ++u) {
          int x = left + u * step_x;
          if (x < 0 || x >= int(activation.get_extent(1)) || channels <= 0) continue;
          auto values = &activation.at(metal::array<int, 4>{0, x, y, image});
          if (count == 8 && place[0] + 7 <= last && int(weights.get_stride(0)) == 1) {
            auto taps = &weights.at(metal::array<int, 4>{place[0], 0, u, v});
            for (int c = 0; c < channels; ++c) {
              Sum value = Sum(values[c * of_activation]);
              for (int k = 0; k < count; ++k) sums[k] += value * Sum(taps[c * of_weights + k]);
            }
          } else {
            for (int k = 0; k < count; ++k) {
              auto taps = &weights.at(metal::array<int, 4>{metal::min(place[0] + k, last), 0, u, v});
              for (int c = 0; c < channels; ++c) sums[k] += Sum(values[c * of_activation]) * Sum(taps[c * of_weights]);
            }
          }
        }
      }
      for (int k = 0; k < count; ++k) {
        bool is_there = place[0] <= last;
        put(destination, i + k, place, is_there ? sums[k] : Sum(0));
        place[0] += 1;
      }
    }
  }

 private:
  int2 offsets;
  template <class element_mtl, class Extents, class Layout, class Sum> static void put(thread metal::cooperative_tensor<element_mtl, Extents, Layout> &destination, ushort i, metal::array<int, 4>, Sum sum) {
    destination.values[i] = element_mtl(adds() ? Sum(destination.values[i]) + sum : sum);
  }
  template <class element_mtl, class Extents, class Kind, class Sum> static void put(thread metal::tensor<element_mtl, Extents, Kind> &destination, ushort, metal::array<int, 4> place, Sum sum) {
    for (int k = 0; k < 4; ++k) if (place[k] >= int(destination.get_extent(k))) return;
    destination.at(place) = typename metal::tensor<element_mtl, Extents, Kind>::value_type(adds() ? Sum(destination.at(place)) + sum : sum);
  }
};
}
}
