// The layers of a network that is run on the chip, for EACH chains of a thread.

template <int N> __device__ __forceinline__ void relu(float (&x)[EACH][N]) {
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int i = 0; i < N; ++i) x[e][i] = larger(x[e][i], 0.0f);
}

template <int SIZE, int STRIDE, int IN, int OUT>
__device__ __forceinline__ void pool(const float (&x)[EACH][IN], float (&y)[EACH][OUT]) {
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int j = 0; j < OUT; ++j) {
      y[e][j] = x[e][j * STRIDE];
#pragma unroll
      for (int i = 1; i < SIZE; ++i) y[e][j] = larger(y[e][j], x[e][j * STRIDE + i]);
    }
}

template <int N> __device__ __forceinline__ void copy(const float (&x)[EACH][N], float (&y)[EACH][N]) {
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int i = 0; i < N; ++i) y[e][i] = x[e][i];
}

#if LITERAL  // a small network: its weights are numbers in the instructions, and reading them costs nothing
__device__ __forceinline__ void begin(const float4*) {}

// W counts numbers: OUT biases, then OUT rows of IN.
template <int W, int IN, int OUT>
__device__ __forceinline__ void dense(const float (&x)[EACH][IN], float (&y)[EACH][OUT]) {
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int j = 0; j < OUT; ++j) {
      float sum = WEIGHTS[W + j];
#pragma unroll
      for (int i = 0; i < IN; ++i) sum = fmaf(WEIGHTS[W + OUT + j * IN + i], x[e][i], sum);
      y[e][j] = sum;
    }
}
#else  // a larger one: weights in shared memory, four outputs of all chains at a time
extern __shared__ float4 shared[];

__device__ __forceinline__ void begin(const float4* weights) {
  for (int i = threadIdx.x; i < FOURS; i += BLOCK) shared[i] = weights[i];
  __syncthreads();
}

// W counts fours: for each four outputs their biases, then for each four inputs the four rows. Outputs wait in a column
// of the thread's own, since registers cannot be counted through.
template <int W, int IN, int OUT>
__device__ __forceinline__ void dense(const float (&x)[EACH][IN], float (&y)[EACH][OUT]) {
  const float4* w = shared + W;
  float* column = (float*)(shared + FOURS) + threadIdx.x;
#pragma unroll 1
  for (int j = 0; j < OUT; j += 4) {
    float4 bias = *w++;
    float sum[EACH][4];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      sum[e][0] = bias.x;
      sum[e][1] = bias.y;
      sum[e][2] = bias.z;
      sum[e][3] = bias.w;
    }
#pragma unroll
    for (int i = 0; i < IN; i += 4, w += 4) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float4 row = w[k];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
          sum[e][k] = fmaf(row.x, x[e][i], sum[e][k]);
          if (i + 1 < IN) sum[e][k] = fmaf(row.y, x[e][i + 1 < IN ? i + 1 : 0], sum[e][k]);
          if (i + 2 < IN) sum[e][k] = fmaf(row.z, x[e][i + 2 < IN ? i + 2 : 0], sum[e][k]);
          if (i + 3 < IN) sum[e][k] = fmaf(row.w, x[e][i + 3 < IN ? i + 3 : 0], sum[e][k]);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int k = 0; k < 4; ++k) column[((j + k) * EACH + e) * BLOCK] = sum[e][k];
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int j = 0; j < OUT; ++j) y[e][j] = column[(j * EACH + e) * BLOCK];
}
#endif
