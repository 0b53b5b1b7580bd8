// Shuffles of Metal 2.4 whose lanes without a partner take another value's lanes, as if it went on there.
// What lanes have that do not take part is undefined in Metal. PyTorch's sums of long in the last lanes of a threadgroup
// add up the filling there.
//@ fill_mtl : simd_shuffle simd_active_threads_mask
template <typename T> inline T fill_mtl(T data, T filling, int shift, uint modulo) {
  uint lane = lane_index_mtl(), place = lane & (modulo - 1);
  int from = (int)place + shift;
  ushort source = (ushort)(lane - place + ((uint)from & (modulo - 1)));
  T inside = simd_shuffle(data, source), outside = simd_shuffle(filling, source);
  bool takes_part = (uint)simd_active_threads_mask().bits_mtl >> source & 1;
  return !takes_part ? filling : from >= 0 && from < (int)modulo ? inside : outside;
}
//@ simd_shuffle_and_fill_down : fill_mtl
template <typename T> inline T simd_shuffle_and_fill_down(T data, T filling, ushort delta, ushort modulo = 32) { return fill_mtl(data, filling, (int)delta, (uint)modulo); }
//@ simd_shuffle_and_fill_up : fill_mtl
template <typename T> inline T simd_shuffle_and_fill_up(T data, T filling, ushort delta, ushort modulo = 32) { return fill_mtl(data, filling, -(int)delta, (uint)modulo); }
//@ quad_shuffle_and_fill_down : fill_mtl
template <typename T> inline T quad_shuffle_and_fill_down(T data, T filling, ushort delta, ushort modulo = 4) { return fill_mtl(data, filling, (int)delta, (uint)modulo); }
//@ quad_shuffle_and_fill_up : fill_mtl
template <typename T> inline T quad_shuffle_and_fill_up(T data, T filling, ushort delta, ushort modulo = 4) { return fill_mtl(data, filling, -(int)delta, (uint)modulo); }
