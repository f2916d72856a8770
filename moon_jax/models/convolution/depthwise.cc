// A 3x3 convolution of each channel by itself, with zeros around the images, and its
// gradients, for one core of a CPU. moon_jax/models/convolution/depthwise.py describes
// the calls.
//
// Images are [B, H, W, C] float32. The numbers of a vector belong to as many channels,
// whose nine weights, and the sums of their gradients, stay in registers while a loop
// passes over a row of pixels. A window's nine numbers are at nine places, one of which is
// a row of zeros where the window reaches past the image.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vectors.h"
#include "xla_call.h"

namespace {

constexpr int kTaps = 9;

struct Shape {
  int64_t batch, height, width, channels;  // of the images
  int64_t down, across;                    // of the outputs
  int64_t stride;

  int64_t size() const { return height * width * channels; }
  int64_t outputs() const { return down * across * channels; }
};

// Where the nine numbers of a window are.
struct Window {
  const float* places[kTaps];
};

// Each y = the sum of its window's numbers, each times its weight; kernel: [9, channels].
void Sums(const std::vector<Window>& windows, const float* kernel, int64_t channels,
          float* y) {
  ForEachVector(channels, [&](auto zeros, int64_t c) {
    using T = decltype(zeros);
    T weights[kTaps];
    for (int tap = 0; tap < kTaps; ++tap)
      weights[tap] = LoadAs<T>(kernel + tap * channels + c);
    float* to = y + c;
    for (const Window& window : windows) {
      T sum = zeros;
      for (int tap = 0; tap < kTaps; ++tap)
        sum += weights[tap] * LoadAs<T>(window.places[tap] + c);
      Store(sum, to);
      to += channels;
    }
  });
}

// Adds each x times its window's numbers to `sums`, [9, channels].
void Add(const std::vector<Window>& windows, const float* x, int64_t channels,
         float* sums) {
  ForEachVector(channels, [&](auto zeros, int64_t c) {
    using T = decltype(zeros);
    T totals[kTaps];
    for (int tap = 0; tap < kTaps; ++tap)
      totals[tap] = LoadAs<T>(sums + tap * channels + c);
    const float* from = x + c;
    for (const Window& window : windows) {
      const T factor = LoadAs<T>(from);
      for (int tap = 0; tap < kTaps; ++tap)
        totals[tap] += factor * LoadAs<T>(window.places[tap] + c);
      from += channels;
    }
    for (int tap = 0; tap < kTaps; ++tap)
      Store(totals[tap], sums + tap * channels + c);
  });
}

void Convolve(const Shape& s, const float* images, const float* kernel, float* y) {
  const std::vector<float> zeros(s.channels);
  std::vector<Window> windows(s.across);  // of a row
  for (int64_t example = 0; example < s.batch; ++example)
    for (int64_t row = 0; row < s.down; ++row) {
      for (int64_t column = 0; column < s.across; ++column)
        for (int tap = 0; tap < kTaps; ++tap) {
          const int64_t i = row * s.stride + tap / 3 - 1;
          const int64_t j = column * s.stride + tap % 3 - 1;
          const bool inside = i >= 0 && i < s.height && j >= 0 && j < s.width;
          windows[column].places[tap] =
              inside ? images + example * s.size() + (i * s.width + j) * s.channels
                     : zeros.data();
        }
      Sums(windows, kernel, s.channels, y);
      y += s.across * s.channels;
    }
}

// A pixel has been in nine windows, or in fewer: the gradients of their outputs, in the
// order of its places in the windows, are the window for both gradients.
void Gradients(const Shape& s, const float* images, const float* kernel,
               const float* gradient, float* of_images, float* of_kernel) {
  const std::vector<float> zeros(s.channels);
  std::vector<float> sums(kTaps * s.channels);  // of an example
  std::vector<Window> windows(s.width);         // of a row
  std::fill_n(of_kernel, kTaps * s.channels, 0.0f);
  for (int64_t example = 0; example < s.batch; ++example) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t row = 0; row < s.height; ++row) {
      for (int64_t column = 0; column < s.width; ++column)
        for (int tap = 0; tap < kTaps; ++tap) {
          const int64_t i = row + 1 - tap / 3, j = column + 1 - tap % 3;
          const bool inside = i >= 0 && i < s.down * s.stride && i % s.stride == 0 &&
                              j >= 0 && j < s.across * s.stride && j % s.stride == 0;
          windows[column].places[tap] =
              inside ? gradient + example * s.outputs() +
                           (i / s.stride * s.across + j / s.stride) * s.channels
                     : zeros.data();
        }
      Sums(windows, kernel, s.channels, of_images);
      Add(windows, images, s.channels, sums.data());
      images += s.width * s.channels, of_images += s.width * s.channels;
    }
    for (int64_t i = 0; i < kTaps * s.channels; ++i) of_kernel[i] += sums[i];
  }
}

// Images and outputs may have lanes before their own dimensions.
Shape ShapeOf(const XLA_FFI_CallFrame* frame, const XLA_FFI_Buffer& images,
              const XLA_FFI_Buffer& outputs) {
  const int64_t* i = images.dims + images.rank - 4;
  const int64_t* o = outputs.dims + outputs.rank - 4;
  return {i[0], i[1], i[2], i[3], o[1], o[2], Attribute(frame)[0]};
}

}  // namespace

extern "C" {

// x, kernel -> y; attribute: stride
XLA_FFI_Error* depthwise(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &x = Argument(frame, 0), &kernel = Argument(frame, 1),
             &y = Result(frame, 0);
  const Shape shape = ShapeOf(frame, x, y);
  for (int64_t i = 0; i < Lanes(x, 4); ++i)
    Convolve(shape, Lane<float>(x, 4, i), Lane<float>(kernel, 4, i),
             Lane<float>(y, 4, i));
  return nullptr;
}

// x, kernel, gradient of y -> gradients of x and kernel; attribute: stride
XLA_FFI_Error* of_depthwise(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &x = Argument(frame, 0), &kernel = Argument(frame, 1),
             &gradient = Argument(frame, 2), &of_x = Result(frame, 0),
             &of_kernel = Result(frame, 1);
  const Shape shape = ShapeOf(frame, x, gradient);
  for (int64_t i = 0; i < Lanes(x, 4); ++i)
    Gradients(shape, Lane<float>(x, 4, i), Lane<float>(kernel, 4, i),
              Lane<float>(gradient, 4, i), Lane<float>(of_x, 4, i),
              Lane<float>(of_kernel, 4, i));
  return nullptr;
}
}
