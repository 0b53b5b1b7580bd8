// Functions of vectors that OpenCL has too. Where threads are computed together (TOGETHER_MTL), Intel's compiler calls its
// functions of vectors for one thread after another, which takes most of the time of compiling and of running them. So they
// are operations of the compiler there, or functions of the components, each of which is computed for all threads at once.
//@ overloads_mtl
// One function for each type, not a template: a scalar argument then converts to the vector type, as in Metal.
#define WIDTHS_MTL(define, t) define(t) define(t##2) define(t##3) define(t##4)
#define VECTORS_MTL(define, t) define(t, 2) define(t, 3) define(t, 4)
#define FLOATS_MTL(define) WIDTHS_MTL(define, float) WIDTHS_MTL(define, half)
#define SIGNED_MTL(define) WIDTHS_MTL(define, char) WIDTHS_MTL(define, short) WIDTHS_MTL(define, int) WIDTHS_MTL(define, long)
#define UNSIGNED_MTL(define) WIDTHS_MTL(define, uchar) WIDTHS_MTL(define, ushort) WIDTHS_MTL(define, uint) WIDTHS_MTL(define, ulong)
#define INTEGERS_MTL(define) SIGNED_MTL(define) UNSIGNED_MTL(define)

//@ fabs : overloads_mtl
#ifdef TOGETHER_MTL
#define FABS_MTL(V) inline V fabs_mtl(V x) { return __builtin_elementwise_abs(x); }
FLOATS_MTL(FABS_MTL)
#else
#define fabs_mtl fabs
#endif

//@ fmin fmax : overloads_mtl
#ifdef TOGETHER_MTL
#define FMIN_MTL(V) \
  inline V fmin_mtl(V x, V y) { return __builtin_elementwise_min(x, y); } \
  inline V fmax_mtl(V x, V y) { return __builtin_elementwise_max(x, y); }
FLOATS_MTL(FMIN_MTL)
#else
#define fmin_mtl fmin
#define fmax_mtl fmax
#endif

//@ min max clamp : overloads_mtl
#ifdef TOGETHER_MTL
#define MIN_MTL(V) \
  inline V min_mtl(V x, V y) { return x < y ? x : y; } \
  inline V max_mtl(V x, V y) { return x > y ? x : y; } \
  inline V clamp_mtl(V x, V low, V high) { return min_mtl(max_mtl(x, low), high); }
FLOATS_MTL(MIN_MTL)
INTEGERS_MTL(MIN_MTL)
#else
#define min_mtl min
#define max_mtl max
#define clamp_mtl clamp
#endif

//@ fma : overloads_mtl
#ifdef TOGETHER_MTL
// Not of halves, which the operation would compute as floats and round twice.
#define FMA_MTL(V) inline V fma_mtl(V x, V y, V z) { return __builtin_elementwise_fma(x, y, z); }
#define HALF_FMA_MTL(V) inline V fma_mtl(V x, V y, V z) { return fma(x, y, z); }
WIDTHS_MTL(FMA_MTL, float)
WIDTHS_MTL(HALF_FMA_MTL, half)
#else
#define fma_mtl fma
#endif

//@ copysign sign : overloads_mtl
#ifdef TOGETHER_MTL
#define SIGN_MTL(V) \
  inline V copysign_mtl(V x, V y) { return __builtin_elementwise_copysign(x, y); } \
  inline V sign_mtl(V x) { return copysign_mtl(__builtin_elementwise_abs(x) > (V)0 ? (V)1 : (V)0, x); }
FLOATS_MTL(SIGN_MTL)
#else
#define copysign_mtl copysign
#define sign_mtl sign
#endif

//@ mix step smoothstep : clamp overloads_mtl
#ifdef TOGETHER_MTL
#define MIX_MTL(V) \
  inline V mix_mtl(V x, V y, V a) { return x + (y - x) * a; } \
  inline V step_mtl(V edge, V x) { return x < edge ? (V)0 : (V)1; } \
  inline V smoothstep_mtl(V low, V high, V x) { V t = clamp_mtl((x - low) / (high - low), (V)0, (V)1); return t * t * ((V)3 - (V)2 * t); }
FLOATS_MTL(MIX_MTL)
#else
#define mix_mtl mix
#define step_mtl step
#define smoothstep_mtl smoothstep
#endif

//@ by_components_mtl : overloads_mtl
// What a function of halves gives is a float's, rounded once: processors that compute with halves are off by two units in
// the last place in many of these functions, where Metal grants one.
#define VECTORS_OF_1_MTL(name, f, t, n, c) inline t##n name(t##n x) { t##n r; for (int i = 0; i < n; i++) r[i] = f((c)x[i]); return r; }
#define VECTORS_OF_2_MTL(name, f, t, n, c) inline t##n name(t##n x, t##n y) { t##n r; for (int i = 0; i < n; i++) r[i] = f((c)x[i], (c)y[i]); return r; }
#define FUNCTION_OF_1_MTL(name, f, t, c) inline t name(t x) { return f((c)x); } VECTORS_OF_1_MTL(name, f, t, 2, c) VECTORS_OF_1_MTL(name, f, t, 3, c) VECTORS_OF_1_MTL(name, f, t, 4, c)
#define FUNCTION_OF_2_MTL(name, f, t, c) inline t name(t x, t y) { return f((c)x, (c)y); } VECTORS_OF_2_MTL(name, f, t, 2, c) VECTORS_OF_2_MTL(name, f, t, 3, c) VECTORS_OF_2_MTL(name, f, t, 4, c)
#define BY_COMPONENTS_1_MTL(name, f) FUNCTION_OF_1_MTL(name, f, float, float) FUNCTION_OF_1_MTL(name, f, half, half)
#define BY_COMPONENTS_2_MTL(name, f) FUNCTION_OF_2_MTL(name, f, float, float) FUNCTION_OF_2_MTL(name, f, half, half)
#ifdef TOGETHER_MTL
#define AS_FLOATS_1_MTL(name, f) FUNCTION_OF_1_MTL(name, f, float, float) FUNCTION_OF_1_MTL(name, f, half, float)
#define AS_FLOATS_2_MTL(name, f) FUNCTION_OF_2_MTL(name, f, float, float) FUNCTION_OF_2_MTL(name, f, half, float)
#else
#define VECTOR_AS_FLOATS_1_MTL(name, f, n) inline float##n name(float##n x) { return f(x); } inline half##n name(half##n x) { return convert_half##n(f(convert_float##n(x))); }
#define VECTOR_AS_FLOATS_2_MTL(name, f, n) inline float##n name(float##n x, float##n y) { return f(x, y); } inline half##n name(half##n x, half##n y) { return convert_half##n(f(convert_float##n(x), convert_float##n(y))); }
#define AS_FLOATS_1_MTL(name, f) VECTOR_AS_FLOATS_1_MTL(name, f, ) VECTOR_AS_FLOATS_1_MTL(name, f, 2) VECTOR_AS_FLOATS_1_MTL(name, f, 3) VECTOR_AS_FLOATS_1_MTL(name, f, 4) VECTOR_AS_FLOATS_1_MTL(name, f, 8) VECTOR_AS_FLOATS_1_MTL(name, f, 16)
#define AS_FLOATS_2_MTL(name, f) VECTOR_AS_FLOATS_2_MTL(name, f, ) VECTOR_AS_FLOATS_2_MTL(name, f, 2) VECTOR_AS_FLOATS_2_MTL(name, f, 3) VECTOR_AS_FLOATS_2_MTL(name, f, 4) VECTOR_AS_FLOATS_2_MTL(name, f, 8) VECTOR_AS_FLOATS_2_MTL(name, f, 16)
#endif

//@ exp exp2 exp10 : by_components_mtl
AS_FLOATS_1_MTL(exp_mtl, exp)
AS_FLOATS_1_MTL(exp2_mtl, exp2)
AS_FLOATS_1_MTL(exp10_mtl, exp10)

//@ log log2 log10 : by_components_mtl
AS_FLOATS_1_MTL(log_mtl, log)
AS_FLOATS_1_MTL(log2_mtl, log2)
AS_FLOATS_1_MTL(log10_mtl, log10)

//@ sin cos tan : by_components_mtl
AS_FLOATS_1_MTL(sin_mtl, sin)
AS_FLOATS_1_MTL(cos_mtl, cos)
AS_FLOATS_1_MTL(tan_mtl, tan)

//@ asin acos atan : by_components_mtl
AS_FLOATS_1_MTL(asin_mtl, asin)
AS_FLOATS_1_MTL(acos_mtl, acos)
AS_FLOATS_1_MTL(atan_mtl, atan)

//@ sinh cosh tanh : by_components_mtl
AS_FLOATS_1_MTL(sinh_mtl, sinh)
AS_FLOATS_1_MTL(cosh_mtl, cosh)
AS_FLOATS_1_MTL(tanh_mtl, tanh)

//@ asinh acosh atanh : by_components_mtl
AS_FLOATS_1_MTL(asinh_mtl, asinh)
AS_FLOATS_1_MTL(acosh_mtl, acosh)
AS_FLOATS_1_MTL(atanh_mtl, atanh)

//@ sinpi cospi tanpi : by_components_mtl
AS_FLOATS_1_MTL(sinpi_mtl, sinpi)
AS_FLOATS_1_MTL(cospi_mtl, cospi)
AS_FLOATS_1_MTL(tanpi_mtl, tanpi)

//@ round : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(round_mtl, round)
#else
#define round_mtl round
#endif

//@ pow powr : by_components_mtl
AS_FLOATS_2_MTL(pow_mtl, pow)
AS_FLOATS_2_MTL(powr_mtl, powr)

//@ fmod atan2 : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_2_MTL(fmod_mtl, fmod)
AS_FLOATS_2_MTL(atan2_mtl, atan2)
#else
#define fmod_mtl fmod
#endif
