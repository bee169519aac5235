// Whole walks of splitting, one thread to EACH chains: position, score and random numbers stay on the chip for all steps.
// The text before this one says INPUTS, OUTPUTS, K x ROWS (alternatives and rows of the property), EACH, BLOCK,
// and has `network`, from EACH x INPUTS numbers to EACH x OUTPUTS.

#define WORDS ((INPUTS + 4) / 4)  // of four random numbers: one for each input, and one to accept by

// min_r (limit - A y)_r, the largest over the alternatives: LinearConstraint of core/properties.py.
__device__ __forceinline__ float score_of(const float (&y)[OUTPUTS], const float* A, const float* limit) {
  float best = -INF;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float least = INF;
#pragma unroll
    for (int r = k * ROWS; r < (k + 1) * ROWS; ++r) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < OUTPUTS; ++j) sum = fmaf(__ldg(A + r * OUTPUTS + j), y[j], sum);
      least = smaller(least, __ldg(limit + r) - sum);
    }
    best = larger(best, least);
  }
  return best;
}

extern "C" __global__ void __launch_bounds__(BLOCK) walk(
    float* positions, float* scores, float* moves, const float* scales, const float* units, const float* levels,
    const float* first, const float* second, const float* A, const float* limit, const float4* weights,
    const u32* seed, int n, int steps, int strict) {
  begin(weights);
  int blocks = (n + BLOCK * EACH - 1) / (BLOCK * EACH), row = blockIdx.x / blocks;
  int start = (blockIdx.x % blocks) * BLOCK * EACH + threadIdx.x;
  if (start >= n) return;
  const float *low = first + (i64)row * INPUTS, *high = second + (i64)row * INPUTS, *unit = units + (i64)row * INPUTS;
  A += (i64)row * K * ROWS * OUTPUTS;
  limit += (i64)row * K * ROWS;
  float here[EACH][INPUTS], s[EACH], scale[EACH], level = levels[row];
  u32 k0 = seed[0], k1 = seed[1], moved[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    i64 chain = (i64)row * n + min(start + e * BLOCK, n - 1);
#pragma unroll
    for (int i = 0; i < INPUTS; ++i) here[e][i] = positions[chain * INPUTS + i];
    s[e] = scores[chain];
    scale[e] = scales[OWN_SCALE ? chain : row];
    moved[e] = 0;
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float there[EACH][INPUTS], x[EACH][INPUTS], y[EACH][OUTPUTS], ratio[EACH], chance[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      ratio[e] = 1.0f;
#pragma unroll
      for (int word = 0; word < WORDS; ++word) {
        uint4 bits = philox(start + e * BLOCK, row, step, word, k0, k1);
#if NORMAL  // pCN: sqrt(1 - beta^2) z + beta xi, which keeps the normal law (kernels/pcn.py)
        float noise[4];
        normals_of(bits, noise);
#pragma unroll
        for (int i = 4 * word; i < INPUTS && i < 4 * word + 4; ++i) {
          float beta = fminf(scale[e] * unit[i], 1.0f);
          there[e][i] = sqrtf(1.0f - beta * beta) * here[e][i] + beta * noise[i - 4 * word];
          x[e][i] = mapped(there[e][i], low[i], high[i]);
        }
#else  // a uniform step cut to the box, with what that makes unequal in the way back (kernels/random_walk.py)
        u32 number[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 4 * word; i < INPUTS && i < 4 * word + 4; ++i) {
          float r = scale[e] * unit[i], from = fmaxf(here[e][i] - r, low[i]), to = fminf(here[e][i] + r, high[i]);
          float at = fminf(fmaxf(fmaf(to - from, number[i - 4 * word] * 2.3283064e-10f, from), from), to);
          float back = fminf(at + r, high[i]) - fmaxf(at - r, low[i]);
          ratio[e] *= __fdividef(fmaxf(to - from, 1e-30f), fmaxf(back, 1e-30f));
          there[e][i] = x[e][i] = at;
        }
        chance[e] = uniform(number[INPUTS % 4]);
#endif
      }
    }
    network(x, y);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      float t = score_of(y[e], A, limit);
      bool ok = passes(t, level, strict);
#if !NORMAL
      ok = ok && chance[e] < ratio[e];
#endif
      if (ok) {
        s[e] = t;
        ++moved[e];
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) here[e][i] = there[e][i];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (start + e * BLOCK >= n) break;
    i64 chain = (i64)row * n + start + e * BLOCK;
#pragma unroll
    for (int i = 0; i < INPUTS; ++i) positions[chain * INPUTS + i] = here[e][i];
    scores[chain] = s[e];
    moves[chain] += moved[e];
  }
}
