// What all kernels share: random numbers and laws of single coordinates.

typedef unsigned int u32;
typedef long long i64;

// Four random words for a counter and a key: Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3).
__device__ __forceinline__ uint4 philox(u32 x, u32 y, u32 z, u32 w, u32 k0, u32 k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u32 h0 = __umulhi(0xD2511F53u, x), l0 = 0xD2511F53u * x;
    u32 h1 = __umulhi(0xCD9E8D57u, z), l1 = 0xCD9E8D57u * z;
    x = h1 ^ y ^ k0;
    y = l1;
    z = h0 ^ w ^ k1;
    w = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(x, y, z, w);
}

// Uniform on [0, 1), by 24 bits.
__device__ __forceinline__ float uniform(u32 bits) { return (bits >> 8) * 5.9604645e-8f; }

// Two standard normals (Box and Muller 1958). The uniform number behind the length has 40 bits, eight of them from b,
// whose other 24 are the angle: a float alone would end at 5.6 sigma, this ends at 7.5.
__device__ __forceinline__ float2 normals(u32 a, u32 b) {
  float u = ((float)a + ((b & 255u) + 0.5f) * 0.00390625f) * 2.3283064e-10f, s, c;
  float r = sqrtf(fmaxf(-2.0f * __logf(u), 0.0f));
  __sincosf((b >> 8) * 3.7450703e-7f - 3.14159265f, &s, &c);
  return make_float2(r * c, r * s);
}

__device__ __forceinline__ void normals_of(uint4 word, float (&z)[4]) {
  float2 first = normals(word.x, word.y), second = normals(word.z, word.w);
  z[0] = first.x;
  z[1] = first.y;
  z[2] = second.x;
  z[3] = second.y;
}

// What a standard normal is mapped to. Between the ends a and b of an interval, as stats/normal.py does: measured from
// the end that is nearer, so that both tails keep their digits. Otherwise to the normal law with mean a and deviation b.
__device__ __forceinline__ float mapped(float z, float a, float b) {
#if UNIFORM
  float tail = 0.5f * erfcf(fabsf(z) * 0.70710678f) * (b - a);
  return z < 0.0f ? a + tail : b - tail;
#else
  return fmaf(z, b, a);
#endif
}

// The larger and the smaller of two numbers; NaN stays, so that a network that overflows is seen.
__device__ __forceinline__ float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a > b || a != a ? a : b;
#endif
}
__device__ __forceinline__ float smaller(float a, float b) { return -larger(-a, -b); }

// NaN passes, so that it is not lost but seen (as in kernels/base.py).
__device__ __forceinline__ bool passes(float score, float level, bool strict) {
  return strict ? !(score <= level) : !(score < level);
}
