// A step of pCN around a network that others run: `propose` makes its inputs, `keep` moves the chains that passed.
// Their noise is made twice from the same counters, which takes less than writing it to memory and reading it again.
// 2^lanes neighbouring threads have one chain, each of them every 2^lanes-th four of its coordinates.

struct Lane {
  u32 chain, row, first, stride;  // chain of all rows; first coordinate of a thread, and how far it is to its next
};

__device__ __forceinline__ Lane lane_of(u32 thread, u32 n, u32 lanes) {
  u32 chain = thread >> lanes;
  return {chain, chain / n, 4 * (thread & ((1u << lanes) - 1)), 4u << lanes};
}

// Four numbers at once where that many are there and lie as memory wants it (WHOLE), else one by one.
template <bool WHOLE> __device__ __forceinline__ void read(const float* from, float (&x)[4], u32 i, u32 d) {
  if (WHOLE) {
    float4 four = *(const float4*)(from + i);
    x[0] = four.x;
    x[1] = four.y;
    x[2] = four.z;
    x[3] = four.w;
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = i + k < d ? from[i + k] : 0.0f;
}

template <bool WHOLE> __device__ __forceinline__ void write(float* to, const float (&x)[4], u32 i, u32 d) {
  if (WHOLE) {
    *(float4*)(to + i) = make_float4(x[0], x[1], x[2], x[3]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (i + k < d) to[i + k] = x[k];
}

// sqrt(1 - beta^2) z + beta xi of four coordinates (kernels/pcn.py).
template <bool WHOLE>
__device__ __forceinline__ void proposed(
    const float* from, float scale, const float* units, const u32* key, u32 chain, u32 i, u32 d, float (&z)[4]) {
  float noise[4], beta[4];
  read<WHOLE>(from, z, i, d);
  normals_of(philox(chain, i, 0, 0, key[0], key[1]), noise);
  if (units) {
    read<WHOLE>(units, beta, i, d);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      beta[k] = fminf(scale * beta[k], 1.0f);
      z[k] = sqrtf(1.0f - beta[k] * beta[k]) * z[k] + beta[k] * noise[k];
    }
    return;
  }
  float kept = sqrtf(1.0f - scale * scale);
#pragma unroll
  for (int k = 0; k < 4; ++k) z[k] = kept * z[k] + scale * noise[k];
}

// Where the numbers of one chain and of its row begin.
struct Chain {
  float* position;
  float* input;
  const float *units, *first, *second;
};

template <bool WHOLE>
__device__ __forceinline__ void propose_all(const Chain& at, float scale, const u32* key, const Lane& lane, u32 d) {
  float z[4], a[4], b[4];
  for (u32 i = lane.first; i < d; i += lane.stride) {
    proposed<WHOLE>(at.position, scale, at.units, key, lane.chain, i, d, z);
    read<WHOLE>(at.first, a, i, d);
    read<WHOLE>(at.second, b, i, d);
#pragma unroll
    for (int k = 0; k < 4; ++k) z[k] = mapped(z[k], a[k], b[k]);
    write<WHOLE>(at.input, z, i, d);
  }
}

template <bool WHOLE>
__device__ __forceinline__ void keep_all(const Chain& at, float scale, const u32* key, const Lane& lane, u32 d) {
  float z[4];
  for (u32 i = lane.first; i < d; i += lane.stride) {
    proposed<WHOLE>(at.position, scale, at.units, key, lane.chain, i, d, z);
    write<WHOLE>(at.position, z, i, d);
  }
}

extern "C" __global__ void __launch_bounds__(256) propose(
    float* positions, float* inputs, const float* scales, const float* units, const float* first,
    const float* second, const u32* key, int rows, int n, int d, int lanes) {
  Lane lane = lane_of(blockIdx.x * 256 + threadIdx.x, n, lanes);
  if (lane.row >= (u32)rows) return;
  i64 place = (i64)lane.chain * d, own = (i64)lane.row * d;
  Chain at = {positions + place, inputs + place, units ? units + own : units, first + own, second + own};
  if (d % 4 == 0)
    propose_all<true>(at, scales[lane.row], key, lane, d);
  else
    propose_all<false>(at, scales[lane.row], key, lane, d);
}

extern "C" __global__ void __launch_bounds__(256) keep(
    float* positions, const float* moved, const float* scales, const float* units, const u32* key, int rows, int n,
    int d, int lanes) {
  Lane lane = lane_of(blockIdx.x * 256 + threadIdx.x, n, lanes);
  if (lane.row >= (u32)rows || moved[lane.chain] == 0.0f) return;
  i64 place = (i64)lane.chain * d;
  Chain at = {positions + place, 0, units ? units + (i64)lane.row * d : units, 0, 0};
  if (d % 4 == 0)
    keep_all<true>(at, scales[lane.row], key, lane, d);
  else
    keep_all<false>(at, scales[lane.row], key, lane, d);
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

// Which proposals pass (1, else 0), and the scores that the chains have then.
extern "C" __global__ void __launch_bounds__(256) judge(
    const float* outputs, const i64* labels, const float* A, const float* limit, const float* levels,
    const float* before, float* after, float* moved, int rows, int n, int size, int alternatives, int each,
    int strict) {
  i64 chain = (i64)blockIdx.x * 256 + threadIdx.x, row = chain / n;
  if (row >= rows) return;
  const float* y = outputs + chain * size;
  int all = alternatives * each;
  float score = labels ? margin(y, labels[row], size)
                       : slack(y, A + row * all * size, limit + row * all, size, alternatives, each);
  bool moves = passes(score, levels[row], strict);
  moved[chain] = moves;
  after[chain] = moves ? score : before[chain];
}
