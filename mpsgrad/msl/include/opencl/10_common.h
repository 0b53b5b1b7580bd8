//@ *
inline uint position_mtl(size_t x) { __builtin_assume(x <= 0x7fffffffUL); return (uint)x; }
inline uint local_position_mtl(size_t x) { __builtin_assume(x <= 1024); return (uint)x; }
inline uint lane_mtl(uint x) { __builtin_assume(x <= 32); return x; }

//@ abs
inline char abs_mtl(char x) { return x < 0 ? -x : x; }
inline short abs_mtl(short x) { return x < 0 ? -x : x; }
inline int abs_mtl(int x) { return x < 0 ? -x : x; }
inline long abs_mtl(long x) { return x < 0 ? -x : x; }
inline uchar abs_mtl(uchar x) { return x; }
inline ushort abs_mtl(ushort x) { return x; }
inline uint abs_mtl(uint x) { return x; }
inline ulong abs_mtl(ulong x) { return x; }
inline half abs_mtl(half x) { return fabs(x); }
inline float abs_mtl(float x) { return fabs(x); }
template <typename E, int N> inline E __attribute__((ext_vector_type(N))) abs_mtl(E __attribute__((ext_vector_type(N))) x) { return x < 0 ? -x : x; }

//@ as_type
template <typename T, typename U> inline T as_type(U x) { return __builtin_astype(x, T); }

//@ vec
template <typename T, int N> using vec = T __attribute__((ext_vector_type(N)));

//@ construct
template <typename T, typename... A> inline T construct_mtl(A... a) { return T{a...}; }

//@ saturate
inline float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
inline half saturate(half x) { return clamp(x, 0.0h, 1.0h); }
template <typename V> inline V saturate(V x) { return clamp(x, V(0), V(1)); }

//@ select
template <typename T> inline T select_mtl(T a, T b, bool c) { return c ? b : a; }
template <typename T, typename C> inline T select_mtl(T a, T b, C c) { return c ? b : a; }

//@ fract
template <typename T> inline T fract_mtl(T x) { return fmin(x - floor(x), T(0x1.fffffep-1f)); }

//@ divide
template <typename T> inline T divide(T x, T y) { return x / y; }

//@ mulhi
template <typename T> inline T mulhi(T x, T y) { return mul_hi(x, y); }

//@ reverse_bits
//@ length_squared
template <typename V> inline auto length_squared(V x) { return dot(x, x); }
//@ distance_squared
template <typename V> inline auto distance_squared(V x, V y) { return dot(x - y, x - y); }

//@ min3 max3
template <typename T> inline T min3(T x, T y, T z) { return min(x, min(y, z)); }
template <typename T> inline T max3(T x, T y, T z) { return max(x, max(y, z)); }

//@ uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t
typedef char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t; typedef ulong uint64_t;
