//@ bits_mtl
// A bit-field of type T: W bits from bit F on of N words, which it shares with its neighbours. The implicit copy, of all
// words, is that of the whole class.
template <typename T, typename E, int N, int F, int W> class bits_mtl {
  E v[N];
  static constexpr int B = 8 * sizeof(E);
  template <bool C, typename X, typename Y> struct choose { typedef X type; };
  template <typename X, typename Y> struct choose<false, X, Y> { typedef Y type; };
  static constexpr bool is_signed = (T)-1 < (T)1 && (T)2 != (T)1;
  typedef typename choose<(W < 32 || W == 32 && is_signed), int, typename choose<W == 32, uint, T>::type>::type promoted;
  T load() const {
    ulong r = 0;
    for (int k = F / B; k * B < F + W; k++) r |= k * B < F ? (ulong)v[k] >> (F - k * B) : (ulong)v[k] << (k * B - F);
    r <<= 64 - W;
    return is_signed ? (T)((long)r >> (64 - W)) : (T)(r >> (64 - W));
  }
  T store(T x) {
    for (int k = F / B; k * B < F + W; k++) {
      const int first = F > k * B ? F : k * B, end = F + W < (k + 1) * B ? F + W : (k + 1) * B;
      const E mask = (E)((~(ulong)0 >> (64 - (end - first))) << (first - k * B));
      v[k] = (E)((v[k] & ~mask) | ((E)(((ulong)x >> (first - F)) << (first - k * B)) & mask));
    }
    return load();
  }
public:
  T value_of_bits() const { return load(); }
  promoted promoted_bits() const { return (promoted)load(); }
  operator promoted() const { return (promoted)load(); }
  T operator=(T x) { return store(x); }
  T operator++() { return store((T)(load() + 1)); }
  T operator--() { return store((T)(load() - 1)); }
  T operator++(int) { T x = load(); store((T)(x + 1)); return x; }
  T operator--(int) { T x = load(); store((T)(x - 1)); return x; }
#define BITS_ASSIGNMENT_MTL(op) template <typename A> T operator op##=(A a) { return store((T)(promoted_bits() op a)); }
  BITS_ASSIGNMENT_MTL(+)
  BITS_ASSIGNMENT_MTL(-)
  BITS_ASSIGNMENT_MTL(*)
  BITS_ASSIGNMENT_MTL(/)
  BITS_ASSIGNMENT_MTL(%)
  BITS_ASSIGNMENT_MTL(&)
  BITS_ASSIGNMENT_MTL(|)
  BITS_ASSIGNMENT_MTL(^)
  BITS_ASSIGNMENT_MTL(<<)
  BITS_ASSIGNMENT_MTL(>>)
#undef BITS_ASSIGNMENT_MTL
};

