// <metal_logging>: nobody reads what kernels log. Messages are dropped, their arguments evaluated.
//@ os_log os_log_default
#ifdef __OPENCL_VERSION__
#define LOGS_MTL const __global
#define LOG_MTL(name) \
  template <typename... A> void name(const __global char *, A...) const {} \
  template <typename... A> void name(const __global char *, A...) const __global {}
#else
#define LOGS_MTL __device__ const
#define LOG_MTL(name) template <typename... A> void name(const char *, A...) const {}
#endif
struct os_log {
  constexpr os_log() {}
#ifdef __OPENCL_VERSION__
  constexpr os_log() __global {}
  constexpr os_log(const __global char *, const __global char *) {}
  constexpr os_log(const __global char *, const __global char *) __global {}
#else
  constexpr os_log(const char *, const char *) {}
#endif
  LOG_MTL(log_mtl)
  LOG_MTL(log_default)
  LOG_MTL(log_debug)
  LOG_MTL(log_info)
  LOG_MTL(log_error)
  LOG_MTL(log_fault)
};
LOGS_MTL os_log os_log_default;
#undef LOGS_MTL
#undef LOG_MTL
