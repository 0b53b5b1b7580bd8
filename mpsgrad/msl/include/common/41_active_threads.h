// What only active threads look up, where all threads of a threadgroup are led to barriers that some of them reach.
//@ any_thread_mtl
// Values, and objects, of active threads; others have some value, and no object.
struct nothing_mtl { template <typename T> operator T() const { return T(); } };
#define when_mtl(is_active, ...) (is_active ? (__VA_ARGS__) : nothing_mtl())
#define where_mtl(is_active, ...) (is_active ? (__VA_ARGS__) : *(decltype(&(__VA_ARGS__)))0)
