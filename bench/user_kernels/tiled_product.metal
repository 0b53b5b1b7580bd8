#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
constant float ALPHA = 1.0f + VARIANT * 1e-9f;
struct GEMMParams { int M; int N; int K; int lda; int ldb; int ldd; float alpha; float beta; };

template <typename T, int BROWS, int BCOLS, int LD, int THREADS>
struct Loader {
    static constexpr constant int VEC = 8;
    static constexpr constant int PER_ROW = BCOLS / VEC;
    const device T* src;
    threadgroup T* dst;
    int stride;
    int row, col;
    Loader(const device T* s, int ld, threadgroup T* d, ushort t) : src(s), dst(d), stride(ld), row(t / PER_ROW), col(t % PER_ROW * VEC) {}
    void load(int rows, int cols) const {
        for (int r = row; r < BROWS; r += THREADS / PER_ROW) {
            #pragma unroll
            for (int j = 0; j < VEC; j++) {
                dst[r * LD + col + j] = (r < rows && col + j < cols) ? src[r * stride + col + j] : T(0);
            }
        }
    }
    void next(int step) { src += step; }
};

template <typename T, int BM, int BN, int BK, int WM, int WN, bool trans_b>
kernel void gemm(device const T* A [[buffer(0)]], device const T* B [[buffer(1)]], device T* D [[buffer(2)]], device const T* C [[buffer(3)]],
                 constant GEMMParams& p [[buffer(4)]], uint3 tid [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]])
{
    constexpr int TM = BM / (8 * WM), TN = BN / (8 * WN);
    threadgroup T As[BM * (BK + 4)];
    threadgroup T Bs[trans_b ? BN * (BK + 4) : BK * (BN + 4)];
    int c_row = tid.y * BM, c_col = tid.x * BN;
    A += c_row * p.lda;
    B += trans_b ? c_col * p.ldb : c_col;
    ushort thread_index = sg * 32 + lane;
    Loader<T, BM, BK, BK + 4, WM * WN * 32> la(A, p.lda, As, thread_index);
    Loader<T, trans_b ? BN : BK, trans_b ? BK : BN, (trans_b ? BK : BN) + 4, WM * WN * 32> lb(B, p.ldb, Bs, thread_index);
    simdgroup_matrix<float, 8, 8> acc[TM][TN];
    for (int i = 0; i < TM; i++) for (int j = 0; j < TN; j++) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    int wm = sg / WN, wn = sg % WN;
    for (int k = 0; k < p.K; k += BK) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        la.load(p.M - c_row, p.K - k);
        lb.load(trans_b ? p.N - c_col : p.K - k, trans_b ? p.K - k : p.N - c_col);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (int kk = 0; kk < BK; kk += 8) {
            simdgroup_matrix<T, 8, 8> a[TM], b[TN];
            #pragma unroll
            for (int i = 0; i < TM; i++) simdgroup_load(a[i], As + (wm * TM + i) * 8 * (BK + 4) + kk, BK + 4);
            #pragma unroll
            for (int j = 0; j < TN; j++) {
                if (trans_b) simdgroup_load(b[j], Bs + (wn * TN + j) * 8 * (BK + 4) + kk, BK + 4, ulong2(0), true);
                else simdgroup_load(b[j], Bs + kk * (BN + 4) + (wn * TN + j) * 8, BN + 4);
            }
            #pragma unroll
            for (int i = 0; i < TM; i++)
                #pragma unroll
                for (int j = 0; j < TN; j++) simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
        }
        la.next(BK);
        lb.next(trans_b ? BK : BK * p.ldb);
    }
    short qid = lane / 4;
    short fm = (qid & 4) + ((lane / 2) % 4);
    short fn = (qid & 2) * 2 + (lane % 2) * 2;
    for (int i = 0; i < TM; i++) {
        for (int j = 0; j < TN; j++) {
            int r = c_row + (wm * TM + i) * 8 + fm, c = c_col + (wn * TN + j) * 8 + fn;
            thread const auto& e = acc[i][j].thread_elements();
            for (int q = 0; q < 2; q++) {
                if (r < p.M && c + q < p.N) {
                    float prior = p.beta != 0 ? p.beta * float(C[r * p.ldd + c + q]) : 0.0f;
                    D[r * p.ldd + c + q] = T(ALPHA * p.alpha * e[q] + prior);
                }
            }
        }
    }
}
#define G(name, T, BM, BN, BK, WM, WN, TB) template [[host_name(name)]] kernel void gemm<T, BM, BN, BK, WM, WN, TB>( \
    device const T*, device const T*, device T*, device const T*, constant GEMMParams&, uint3, uint, uint);
G("gemm_nn_float", float, 32, 32, 16, 2, 2, false)
G("gemm_nt_float", float, 32, 32, 16, 2, 2, true)
G("gemm_nn_half", half, 64, 32, 16, 2, 2, false)
