// A step of pCN around a network that others run: `propose` makes its inputs, `keep` moves the chains that passed.
// Their noise is made twice from the same counters, which takes less than writing it to memory and reading it again.
// 2^lanes neighbouring threads have one chain, each of them every 2^lanes-th four of its coordinates.

struct Chain {
  u32 number, row, first, stride;  // of all rows; row; first coordinate of a thread; to its next
};

__device__ __forceinline__ Chain chain_of(u32 thread, u32 n, u32 lanes) {
  u32 number = thread >> lanes;
  return {number, number / n, 4 * (thread & ((1u << lanes) - 1)), 4u << lanes};
}

// sqrt(1 - beta^2) z + beta xi of four coordinates (kernels/pcn.py).
__device__ __forceinline__ void proposed(
    const float* from, float scale, const float* units, const u32* key, u32 chain, u32 i, u32 d, float (&z)[4]) {
  float noise[4];
  normals_of(philox(chain, i, 0, 0, key[0], key[1]), noise);
  if (d % 4 == 0) {
    float4 four = *(const float4*)from;
    z[0] = four.x;
    z[1] = four.y;
    z[2] = four.z;
    z[3] = four.w;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) z[k] = i + k < d ? from[k] : 0.0f;
  }
  float kept = root(1.0f - scale * scale);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (units && i + k < d) {
      float beta = fminf(scale * units[i + k], 1.0f);
      z[k] = root(1.0f - beta * beta) * z[k] + beta * noise[k];
    } else {
      z[k] = kept * z[k] + scale * noise[k];
    }
  }
}

__device__ __forceinline__ void write(float* to, const float (&x)[4], u32 i, u32 d) {
  if (d % 4 == 0) {
    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (i + k < d) to[k] = x[k];
}

extern "C" __global__ void __launch_bounds__(256) propose(
    const float* positions, float* inputs, const float* scales, const float* units, const float* first,
    const float* second, const u32* key, int rows, int n, int d, int lanes) {
  Chain at = chain_of(blockIdx.x * 256 + threadIdx.x, n, lanes);
  if (at.row >= (u32)rows) return;
  float scale = scales[at.row], z[4];
  i64 place = (i64)at.number * d;
  const float *a = first + (i64)at.row * d, *b = second + (i64)at.row * d;
  if (units) units += (i64)at.row * d;
  for (u32 i = at.first; i < (u32)d; i += at.stride) {
    proposed(positions + place + i, scale, units, key, at.number, i, d, z);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k < (u32)d) z[k] = mapped(z[k], a[i + k], b[i + k]);
    write(inputs + place + i, z, i, d);
  }
}

extern "C" __global__ void __launch_bounds__(256) keep(
    float* positions, const unsigned char* ok, const float* scales, const float* units, const u32* key, int rows,
    int n, int d, int lanes) {
  Chain at = chain_of(blockIdx.x * 256 + threadIdx.x, n, lanes);
  if (at.row >= (u32)rows || !ok[at.number]) return;
  float scale = scales[at.row], z[4];
  i64 place = (i64)at.number * d;
  if (units) units += (i64)at.row * d;
  for (u32 i = at.first; i < (u32)d; i += at.stride) {
    proposed(positions + place + i, scale, units, key, at.number, i, d, z);
    write(positions + place + i, z, i, d);
  }
}

// Scores of outputs: of the best class but the label over the label's own, or by rows of limit - A y as in chains.cuh.
__device__ __forceinline__ float margin(const float* y, i64 label, int outputs) {
  float best = -INF;
  for (int j = 0; j < outputs; ++j)
    if (j != label) best = larger(best, y[j]);
  return best - y[label];
}

__device__ __forceinline__ float slack(
    const float* y, const float* A, const float* limit, int outputs, int alternatives, int rows) {
  float best = -INF;
  for (int k = 0; k < alternatives; ++k) {
    float least = INF;
    for (int r = k * rows; r < (k + 1) * rows; ++r) {
      float sum = 0.0f;
      for (int j = 0; j < outputs; ++j) sum = fmaf(A[r * outputs + j], y[j], sum);
      least = smaller(least, limit[r] - sum);
    }
    best = larger(best, least);
  }
  return best;
}

// Which proposals pass, and the scores that the chains have then.
extern "C" __global__ void __launch_bounds__(256) judge(
    const float* outputs, const i64* labels, const float* A, const float* limit, const float* levels,
    const float* before, float* after, unsigned char* ok, int rows, int n, int size, int alternatives, int each,
    int strict) {
  i64 chain = (i64)blockIdx.x * 256 + threadIdx.x, row = chain / n;
  if (row >= rows) return;
  const float* y = outputs + chain * size;
  int all = alternatives * each;
  float score = labels ? margin(y, labels[row], size)
                       : slack(y, A + row * all * size, limit + row * all, size, alternatives, each);
  bool moves = passes(score, levels[row], strict);
  ok[chain] = moves;
  after[chain] = moves ? score : before[chain];
}
