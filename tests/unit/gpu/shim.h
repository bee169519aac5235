// What CUDA C has that C++ has not, so that the programs can be tried where there is no GPU, one thread after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
using std::max;
using std::min;
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __syncthreads()
#define __ldg(pointer) (*(pointer))
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
static thread_local Index threadIdx, blockIdx;
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __int_as_float(int i) { float f; std::memcpy(&f, &i, 4); return f; }
static inline float host_log(float x) { return std::log(x); }
static inline float host_exp(float x) { return std::exp(x); }
static inline void host_sincos(float x, float* s, float* c) { *s = std::sin(x); *c = std::cos(x); }
