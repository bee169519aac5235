// What all kernels share: random numbers and laws of single coordinates.

typedef unsigned int u32;
typedef long long i64;

#define INF __int_as_float(0x7f800000)

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

// P(Z > z) for z >= 0, to 2e-5 of itself up to z = 13, where floats end: Chebyshev's fit of Press et al., Numerical
// Recipes, erfcc, is good to 1.2e-7, and the exponential of a float to its rounding. CUDA's erfcf takes twice as long.
__device__ __forceinline__ float upper_tail(float z) {
  float x = z * 0.70710678f, t = __fdividef(1.0f, fmaf(0.5f, x, 1.0f));
  float p = fmaf(t, 0.17087277f, -0.82215223f);
  p = fmaf(t, p, 1.48851587f);
  p = fmaf(t, p, -1.13520398f);
  p = fmaf(t, p, 0.27886807f);
  p = fmaf(t, p, -0.18628806f);
  p = fmaf(t, p, 0.09678418f);
  p = fmaf(t, p, 0.37409196f);
  p = fmaf(t, p, 1.00002368f);
  p = fmaf(t, p, -1.26551223f);
  return 0.5f * t * __expf(fmaf(-x, x, p));
}

// What a standard normal is mapped to. Between the ends a and b of an interval, as stats/normal.py does: measured from
// the end that is nearer, so that both tails keep their digits. Otherwise to the normal law with mean a and deviation b.
__device__ __forceinline__ float mapped(float z, float a, float b) {
#if UNIFORM
  float tail = upper_tail(fabsf(z)) * (b - a);
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

// NaN passes, so that it is not lost but seen (as in stats/levels.py).
__device__ __forceinline__ bool passes(float score, float level, bool strict) {
  return strict ? !(score <= level) : !(score < level);
}
