// Batch normalisation, with or without ReLU, and its gradients, for one core of a CPU.
// moon_jax/models/batch_norm.py describes the calls.
//
// Images are [B, H, W, C] float32. The numbers of a vector belong to as many channels. The
// statistics of a few pixels are taken while these are in the cache, and joined, so the
// images are read once.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vectors.h"
#include "xla_call.h"

namespace {

constexpr int64_t kBlock = 4096;  // numbers of the pixels that are in the cache
constexpr float kEpsilon = 1e-5f;

struct Images {
  int64_t batch, pixels, channels;  // of an example
  bool relu;

  int64_t size() const { return pixels * channels; }  // of an example

  // Calls f(first pixel, number of pixels) for blocks of an example.
  template <typename F>
  void ForEachBlock(F f) const {
    const int64_t most = std::max<int64_t>(kBlock / channels, 8);
    for (int64_t start = 0; start < pixels; start += most)
      f(start, std::min(most, pixels - start));
  }
};

// Numbers for each channel.
using Row = std::vector<float>;

template <typename T>
T Normalised(T x, T mean, T factor, T bias) {
  return (x - mean) * factor + bias;
}

int64_t NumReal(const Images& s, const float* mask) {
  int64_t real = 0;
  for (int64_t example = 0; example < s.batch; ++example) real += mask[example] > 0;
  return real * s.pixels;
}

// Mean and biased variance of the real examples. Two sets of numbers are joined as in
// Chan et al. 1979, "Updating formulae and a pairwise algorithm", eq. 2.1.
void Statistics(const Images& s, const float* images, const float* mask, float* mean,
                float* variance) {
  std::fill_n(mean, s.channels, 0.0f);
  std::fill_n(variance, s.channels, 0.0f);
  float before = 0;  // values of a channel so far
  for (int64_t example = 0; example < s.batch; ++example) {
    if (!(mask[example] > 0)) continue;
    s.ForEachBlock([&](int64_t first, int64_t count) {
      const float* block = images + example * s.size() + first * s.channels;
      const float all = before + count, share = count / all, both = before * share;
      ForEachVector(s.channels, [&](auto zeros, int64_t channel) {
        using T = decltype(zeros);
        const float* x = block + channel;
        T sum = zeros, squares = zeros;
        for (int64_t i = 0; i < count; ++i) sum += LoadAs<T>(x + i * s.channels);
        const T block_mean = sum / static_cast<float>(count);
        for (int64_t i = 0; i < count; ++i) {
          const T apart = LoadAs<T>(x + i * s.channels) - block_mean;
          squares += apart * apart;
        }
        const T mean_before = LoadAs<T>(mean + channel);
        const T apart = block_mean - mean_before;
        Store(mean_before + apart * share, mean + channel);
        Store(LoadAs<T>(variance + channel) + (squares + apart * apart * both),
              variance + channel);
      });
      before = all;
    });
  }
  for (int64_t c = 0; c < s.channels; ++c) variance[c] /= std::max(before, 1.0f);
}

Row Factors(const Images& s, const float* variance, const float* scale) {
  Row factors(s.channels);
  for (int64_t c = 0; c < s.channels; ++c)
    factors[c] = scale[c] / std::sqrt(variance[c] + kEpsilon);
  return factors;
}

template <bool kRelu>
void Normalise(const Images& s, const float* x, const float* mean, const float* factor,
               const float* bias, float* y) {
  for (int64_t i = 0; i < s.batch * s.pixels; ++i, x += s.channels, y += s.channels)
    ForEachVector(s.channels, [&](auto zeros, int64_t c) {
      using T = decltype(zeros);
      const T normal = Normalised(LoadAs<T>(x + c), LoadAs<T>(mean + c),
                                  LoadAs<T>(factor + c), LoadAs<T>(bias + c));
      // What is no number stays.
      Store(kRelu ? (normal < zeros ? zeros : normal) : normal, y + c);
    });
}

// The gradients of scale and bias, and of the images. The mean and the variance have
// gradients too.
template <bool kRelu>
void Gradients(const Images& s, const float* images, const float* mask,
               const float* mean, const float* variance, const float* scale,
               const float* bias, const float* gradient, const float* mean_gradient,
               const float* variance_gradient, float* of_images, float* of_scale,
               float* of_bias) {
  const Row factors = Factors(s, variance, scale);
  const float* factor = factors.data();
  Row sums(s.channels), weighted_sums(s.channels);
  for (int64_t example = 0; example < s.batch; ++example)
    s.ForEachBlock([&](int64_t first, int64_t count) {
      const int64_t start = example * s.size() + first * s.channels;
      ForEachVector(s.channels, [&](auto zeros, int64_t c) {
        using T = decltype(zeros);
        const float *x = images + start + c, *g = gradient + start + c;
        const T of_mean = LoadAs<T>(mean + c), of_factor = LoadAs<T>(factor + c);
        const T of_bias = LoadAs<T>(bias + c);
        T sum = zeros, weighted_sum = zeros;
        for (int64_t i = 0; i < count; ++i) {
          const T pixel = LoadAs<T>(x + i * s.channels);
          T passed = LoadAs<T>(g + i * s.channels);
          if (kRelu)
            passed = Normalised(pixel, of_mean, of_factor, of_bias) > zeros ? passed : zeros;
          sum += passed;
          weighted_sum += passed * (pixel - of_mean);
        }
        Store(LoadAs<T>(&sums[c]) + sum, &sums[c]);
        Store(LoadAs<T>(&weighted_sums[c]) + weighted_sum, &weighted_sums[c]);
      });
    });
  // dx = factor g + of_mean / count + of_variance 2 (x - mean) / count
  Row constants(s.channels), slopes(s.channels);
  const float count = std::max<float>(NumReal(s, mask), 1);
  for (int64_t c = 0; c < s.channels; ++c) {
    const float inverse = 1 / std::sqrt(variance[c] + kEpsilon);
    const float of_variance =
        variance_gradient[c] -
        0.5f * weighted_sums[c] * factor[c] * inverse * inverse;
    constants[c] = (mean_gradient[c] - factor[c] * sums[c]) / count;
    slopes[c] = 2 * of_variance / count;
    of_scale[c] = weighted_sums[c] * inverse;
    of_bias[c] = sums[c];
  }
  const Row none(s.channels);
  for (int64_t example = 0; example < s.batch; ++example) {
    // No example changes what filler contributes to the statistics: nothing.
    const bool is_real = mask[example] > 0;
    const float* constant = is_real ? constants.data() : none.data();
    const float* slope = is_real ? slopes.data() : none.data();
    for (int64_t i = 0; i < s.pixels; ++i) {
      const int64_t at = example * s.size() + i * s.channels;
      const float *x = images + at, *g = gradient + at;
      ForEachVector(s.channels, [&](auto zeros, int64_t c) {
        using T = decltype(zeros);
        const T pixel = LoadAs<T>(x + c), of_mean = LoadAs<T>(mean + c);
        const T of_factor = LoadAs<T>(factor + c);
        T passed = LoadAs<T>(g + c);
        if (kRelu)
          passed = Normalised(pixel, of_mean, of_factor, LoadAs<T>(bias + c)) > zeros
                       ? passed
                       : zeros;
        Store(passed * of_factor + (LoadAs<T>(constant + c) +
                                    LoadAs<T>(slope + c) * (pixel - of_mean)),
              of_images + at + c);
      });
    }
  }
}

// Of images that may have lanes before their own dimensions.
Images ImagesOf(const XLA_FFI_CallFrame* frame, const XLA_FFI_Buffer& images) {
  const int64_t* sides = images.dims + images.rank - 4;
  return {sides[0], sides[1] * sides[2], sides[3], Attribute(frame)[0] != 0};
}

}  // namespace

extern "C" {

// x, mask, scale, bias -> y, mean, variance; attribute: whether there is a ReLU
XLA_FFI_Error* batch_norm(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &x = Argument(frame, 0), &mask = Argument(frame, 1),
             &scale = Argument(frame, 2), &bias = Argument(frame, 3),
             &y = Result(frame, 0), &mean = Result(frame, 1),
             &variance = Result(frame, 2);
  const Images s = ImagesOf(frame, x);
  for (int64_t i = 0; i < Lanes(x, 4); ++i) {
    const float* images = Lane<float>(x, 4, i);
    float *of_mean = Lane<float>(mean, 1, i), *of_variance = Lane<float>(variance, 1, i);
    Statistics(s, images, Lane<float>(mask, 1, i), of_mean, of_variance);
    const Row factors = Factors(s, of_variance, Lane<float>(scale, 1, i));
    (s.relu ? Normalise<true> : Normalise<false>)(
        s, images, of_mean, factors.data(), Lane<float>(bias, 1, i), Lane<float>(y, 4, i));
  }
  return nullptr;
}

// x, mask, mean, variance, scale, bias, gradients of y, mean and variance -> gradients of
// x, scale and bias; attribute: whether there is a ReLU
XLA_FFI_Error* of_batch_norm(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto& x = Argument(frame, 0);
  const auto argument = [&](int index, int rank, int64_t lane) {
    return Lane<float>(Argument(frame, index), rank, lane);
  };
  const auto result = [&](int index, int rank, int64_t lane) {
    return Lane<float>(Result(frame, index), rank, lane);
  };
  const Images s = ImagesOf(frame, x);
  for (int64_t i = 0; i < Lanes(x, 4); ++i)
    (s.relu ? Gradients<true> : Gradients<false>)(
        s, argument(0, 4, i), argument(1, 1, i), argument(2, 1, i), argument(3, 1, i),
        argument(4, 1, i), argument(5, 1, i), argument(6, 4, i), argument(7, 1, i),
        argument(8, 1, i), result(0, 4, i), result(1, 1, i), result(2, 1, i));
  return nullptr;
}
}
