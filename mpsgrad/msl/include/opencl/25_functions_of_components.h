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
#define VECTORS_OF_1_MTL(name, f, t, n) inline t##n name(t##n x) { t##n r; for (int i = 0; i < n; i++) r[i] = f((t)x[i]); return r; }
#define VECTORS_OF_2_MTL(name, f, t, n) inline t##n name(t##n x, t##n y) { t##n r; for (int i = 0; i < n; i++) r[i] = f((t)x[i], (t)y[i]); return r; }
#define FUNCTION_OF_1_MTL(name, f, t) inline t name(t x) { return f(x); } VECTORS_OF_1_MTL(name, f, t, 2) VECTORS_OF_1_MTL(name, f, t, 3) VECTORS_OF_1_MTL(name, f, t, 4)
#define FUNCTION_OF_2_MTL(name, f, t) inline t name(t x, t y) { return f(x, y); } VECTORS_OF_2_MTL(name, f, t, 2) VECTORS_OF_2_MTL(name, f, t, 3) VECTORS_OF_2_MTL(name, f, t, 4)
#define BY_COMPONENTS_1_MTL(name, f) FUNCTION_OF_1_MTL(name, f, float) FUNCTION_OF_1_MTL(name, f, half)
#define BY_COMPONENTS_2_MTL(name, f) FUNCTION_OF_2_MTL(name, f, float) FUNCTION_OF_2_MTL(name, f, half)

//@ exp exp2 exp10 : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(exp_mtl, exp)
BY_COMPONENTS_1_MTL(exp2_mtl, exp2)
BY_COMPONENTS_1_MTL(exp10_mtl, exp10)
#else
#define exp_mtl exp
#define exp2_mtl exp2
#define exp10_mtl exp10
#endif

//@ log log2 log10 : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(log_mtl, log)
BY_COMPONENTS_1_MTL(log2_mtl, log2)
BY_COMPONENTS_1_MTL(log10_mtl, log10)
#else
#define log_mtl log
#define log2_mtl log2
#define log10_mtl log10
#endif

//@ sin cos tan : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(sin_mtl, sin)
BY_COMPONENTS_1_MTL(cos_mtl, cos)
BY_COMPONENTS_1_MTL(tan_mtl, tan)
#else
#define sin_mtl sin
#define cos_mtl cos
#define tan_mtl tan
#endif

//@ asin acos atan : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(asin_mtl, asin)
BY_COMPONENTS_1_MTL(acos_mtl, acos)
BY_COMPONENTS_1_MTL(atan_mtl, atan)
#else
#define asin_mtl asin
#define acos_mtl acos
#define atan_mtl atan
#endif

//@ sinh cosh tanh : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(sinh_mtl, sinh)
BY_COMPONENTS_1_MTL(cosh_mtl, cosh)
BY_COMPONENTS_1_MTL(tanh_mtl, tanh)
#else
#define sinh_mtl sinh
#define cosh_mtl cosh
#define tanh_mtl tanh
#endif

//@ asinh acosh atanh : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(asinh_mtl, asinh)
BY_COMPONENTS_1_MTL(acosh_mtl, acosh)
BY_COMPONENTS_1_MTL(atanh_mtl, atanh)
#else
#define asinh_mtl asinh
#define acosh_mtl acosh
#define atanh_mtl atanh
#endif

//@ sinpi cospi tanpi : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(sinpi_mtl, sinpi)
BY_COMPONENTS_1_MTL(cospi_mtl, cospi)
BY_COMPONENTS_1_MTL(tanpi_mtl, tanpi)
#else
#define sinpi_mtl sinpi
#define cospi_mtl cospi
#define tanpi_mtl tanpi
#endif

//@ round : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_1_MTL(round_mtl, round)
#else
#define round_mtl round
#endif

//@ pow powr : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_2_MTL(pow_mtl, pow)
BY_COMPONENTS_2_MTL(powr_mtl, powr)
#else
#define pow_mtl pow
#define powr_mtl powr
#endif

//@ fmod atan2 : by_components_mtl
#ifdef TOGETHER_MTL
BY_COMPONENTS_2_MTL(fmod_mtl, fmod)
BY_COMPONENTS_2_MTL(atan2_mtl, atan2)
#else
#define fmod_mtl fmod
#define atan2_mtl atan2
#endif
