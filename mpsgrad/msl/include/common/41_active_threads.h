// What only active threads look up, where all threads of a threadgroup are led to barriers that some of them reach.
//@ any_thread_mtl
// Values, and objects, of active threads; others have some value, and no object.
template <typename T> union zeros_mtl { T value; char bytes[sizeof(T)]; zeros_mtl() : bytes{} {} };
struct nothing_mtl {
  template <typename T> operator T() const {
    if constexpr (__is_constructible(T)) return T();
    else return zeros_mtl<T>().value;
  }
};
#define when_mtl(is_active, ...) (is_active ? (__VA_ARGS__) : nothing_mtl())
#define where_mtl(is_active, ...) (is_active ? (__VA_ARGS__) : *(decltype(&(__VA_ARGS__)))0)
