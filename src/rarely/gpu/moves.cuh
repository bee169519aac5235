// A step of pCN around a network that others run: `propose` makes its inputs, `keep` moves the chains that passed.
// Their noise is made twice from the same counters, which takes less than writing it to memory and reading it again.
// One thread has four neighbouring coordinates of one chain.

struct Place {
  u32 chain, row, i;  // chain of all rows, row, first coordinate
};

__device__ __forceinline__ Place place(u32 at, u32 n, u32 d) {
  u32 quads = (d + 3) / 4, chain = at / quads;
  return {chain, chain / n, 4 * (at % quads)};
}

__device__ __forceinline__ void proposed(
    const Place& at, const float* positions, const float* scales, const float* units, const u32* key, u32 d,
    float (&z)[4]) {
  float noise[4], scale = scales[at.row];
  normals_of(philox(at.chain, at.i, 0, 0, key[0], key[1]), noise);
  const float* from = positions + (i64)at.chain * d + at.i;
  if (d % 4 == 0) {
    float4 four = *(const float4*)from;
    z[0] = four.x;
    z[1] = four.y;
    z[2] = four.z;
    z[3] = four.w;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (at.i + k >= d) break;
    float beta = fminf(units ? scale * units[(i64)at.row * d + at.i + k] : scale, 1.0f);
    z[k] = sqrtf(1.0f - beta * beta) * (d % 4 == 0 ? z[k] : from[k]) + beta * noise[k];
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
    const float* second, const u32* key, int count, int n, int d) {
  u32 index = blockIdx.x * 256 + threadIdx.x;
  if (index >= (u32)count) return;
  Place at = place(index, n, d);
  float z[4];
  proposed(at, positions, scales, units, key, d, z);
  const float *a = first + (i64)at.row * d + at.i, *b = second + (i64)at.row * d + at.i;
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (at.i + k < d) z[k] = mapped(z[k], a[k], b[k]);
  write(inputs + (i64)at.chain * d + at.i, z, at.i, d);
}

extern "C" __global__ void __launch_bounds__(256) keep(
    float* positions, const unsigned char* ok, const float* scales, const float* units, const u32* key, int count,
    int n, int d) {
  u32 index = blockIdx.x * 256 + threadIdx.x;
  if (index >= (u32)count) return;
  Place at = place(index, n, d);
  if (!ok[at.chain]) return;
  float z[4];
  proposed(at, positions, scales, units, key, d, z);
  write(positions + (i64)at.chain * d + at.i, z, at.i, d);
}
