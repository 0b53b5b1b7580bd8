// What a body for metal_kernel may use besides the standard library.
#include <metal_stdlib>

using namespace metal;

typedef half float16_t;
typedef bfloat bfloat16_t;

struct complex64_t {
  float real;
  float imag;
  complex64_t() = default;
  constexpr complex64_t(float r, float i) : real(r), imag(i) {}
  constexpr complex64_t(float r) : real(r), imag(0) {}
};

inline complex64_t operator-(complex64_t a) {
  return complex64_t(-a.real, -a.imag);
}
inline complex64_t operator+(complex64_t a, complex64_t b) {
  return complex64_t(a.real + b.real, a.imag + b.imag);
}
inline complex64_t operator-(complex64_t a, complex64_t b) {
  return complex64_t(a.real - b.real, a.imag - b.imag);
}
inline complex64_t operator*(complex64_t a, complex64_t b) {
  return complex64_t(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real);
}
inline complex64_t operator/(complex64_t a, complex64_t b) {
  float norm = b.real * b.real + b.imag * b.imag;
  return complex64_t((a.real * b.real + a.imag * b.imag) / norm, (a.imag * b.real - a.real * b.imag) / norm);
}
inline bool operator==(complex64_t a, complex64_t b) {
  return a.real == b.real && a.imag == b.imag;
}
inline bool operator!=(complex64_t a, complex64_t b) {
  return !(a == b);
}

// The extremes of a type: those of its finite numbers, and with infinity where it has one.
template <typename T>
struct Limits {
  static constexpr constant T max = numeric_limits<T>::max();
  static constexpr constant T min = numeric_limits<T>::lowest();
  static constexpr constant T finite_max = numeric_limits<T>::max();
  static constexpr constant T finite_min = numeric_limits<T>::lowest();
};
#define LIMITS_WITH_INFINITY(T) \
  template <> \
  struct Limits<T> { \
    static constexpr constant T max = numeric_limits<T>::infinity(); \
    static constexpr constant T min = -numeric_limits<T>::infinity(); \
    static constexpr constant T finite_max = numeric_limits<T>::max(); \
    static constexpr constant T finite_min = -numeric_limits<T>::max(); \
  };
LIMITS_WITH_INFINITY(float)
LIMITS_WITH_INFINITY(half)
LIMITS_WITH_INFINITY(bfloat)
#undef LIMITS_WITH_INFINITY
template <>
struct Limits<bool> {
  static constexpr constant bool max = true;
  static constexpr constant bool min = false;
};

// Where an element lies in memory: from its number in row-major order, or from its place along up to three axes.
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  IdxT place = 0;
  for (int axis = ndim - 1; axis >= 0; axis--) {
    place += (elem % shape[axis]) * IdxT(strides[axis]);
    elem /= shape[axis];
  }
  return place;
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc(uint3 elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  IdxT place = elem.x * IdxT(strides[ndim - 1]);
  if (ndim > 1) {
    place += elem.y * IdxT(strides[ndim - 2]);
  }
  for (int axis = ndim - 3; axis >= 0; axis--) {
    place += (elem.z % shape[axis]) * IdxT(strides[axis]);
    elem.z /= shape[axis];
  }
  return place;
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc_1(uint elem, constant const int64_t& stride) {
  return elem * IdxT(stride);
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc_2(uint2 elem, constant const int64_t* strides) {
  return elem.x * IdxT(strides[1]) + elem.y * IdxT(strides[0]);
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc_3(uint3 elem, constant const int64_t* strides) {
  return elem.x * IdxT(strides[2]) + elem.y * IdxT(strides[1]) + elem.z * IdxT(strides[0]);
}

template <typename T, typename U>
inline T ceildiv(T n, U m) {
  return (n + m - 1) / m;
}

// log(1 + x) without the error of 1 + x, by the ratio of both.
inline float log1p(float x) {
  float y = 1.0f + x;
  return y == 1.0f ? x : isinf(y) ? y : x * (precise::log(y) / (y - 1.0f));
}
