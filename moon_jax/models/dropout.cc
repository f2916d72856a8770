// Dropout for one core of a CPU, with the draws of jax.random.bernoulli.
// moon_jax/models/dropout.py describes the call.
//
// The draw of a number is made in registers from the key and the number's place, and
// nothing of it is written to memory. The gradient makes the same draws again.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.h"
#include "xla_call.h"

namespace {

typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));

constexpr int kBlocks = 4;  // vectors of draws that are made side by side
constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};

// Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3") of the places `first`, `first` + 1, ...: the exclusive or of its two words.
void Draw(const uint32_t* key, uint64_t first, Words (&draws)[kBlocks]) {
  const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  Words high[kBlocks], low[kBlocks];
  for (int block = 0; block < kBlocks; ++block)
    for (int i = 0; i < kWidth; ++i) {
      const uint64_t place = first + block * kWidth + i;
      high[block][i] = static_cast<uint32_t>(place >> 32);
      low[block][i] = static_cast<uint32_t>(place);
    }
  for (int block = 0; block < kBlocks; ++block) high[block] += keys[0], low[block] += keys[1];
#pragma GCC unroll 5
  for (uint32_t group = 0; group < 5; ++group) {
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {
      const int left = kRotations[group % 2][round];
#pragma GCC unroll 4
      for (int block = 0; block < kBlocks; ++block) {
        high[block] += low[block];
        low[block] = (low[block] << left) | (low[block] >> (32 - left));
        low[block] ^= high[block];
      }
    }
    for (int block = 0; block < kBlocks; ++block) {
      high[block] += keys[(group + 1) % 3];
      low[block] += keys[(group + 2) % 3] + group + 1;
    }
  }
  for (int block = 0; block < kBlocks; ++block) draws[block] = high[block] ^ low[block];
}

// y = x * factor where the first 23 bits of the draw are below `bound`, else 0.
void Drop(const float* x, const uint32_t* key, int64_t size, uint32_t bound,
          float factor, float* y) {
  constexpr int64_t kDraws = kBlocks * kWidth;
  Words draws[kBlocks];
  for (int64_t start = 0; start < size; start += kDraws, x += kDraws, y += kDraws) {
    Draw(key, start, draws);
    if (size - start >= kDraws) {
      for (int block = 0; block < kBlocks; ++block) {
        const auto is_kept = (draws[block] >> 9) < bound;
        const Vector kept = Load(x + block * kWidth) * factor;
        At(y + block * kWidth) = is_kept ? kept : Vector{};
      }
      continue;
    }
    uint32_t numbers[kDraws];
    std::memcpy(numbers, draws, sizeof(numbers));
    for (int64_t i = 0; i < size - start; ++i)
      y[i] = (numbers[i] >> 9) < bound ? x[i] * factor : 0.0f;
  }
}

}  // namespace

// x, key -> y; attribute: `bound`, and the bits of `factor`
extern "C" XLA_FFI_Error* dropout(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &x = Argument(frame, 0), &key = Argument(frame, 1), &y = Result(frame, 0);
  const int64_t* numbers = Attribute(frame);
  const auto bits = static_cast<uint32_t>(numbers[1]);
  float factor;
  std::memcpy(&factor, &bits, sizeof(factor));
  for (int64_t i = 0; i < Lanes(x, 1); ++i)
    Drop(Lane<float>(x, 1, i), Lane<uint32_t>(key, 1, i), x.dims[x.rank - 1],
         static_cast<uint32_t>(numbers[0]), factor, Lane<float>(y, 1, i));
  return nullptr;
}
