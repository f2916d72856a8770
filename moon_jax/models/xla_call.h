// What the functions that XLA calls have in common. moon_jax/models/cpu_kernels.py
// compiles them.

#pragma once

#include <cstdint>

#include "xla/ffi/api/c_api.h"

inline const XLA_FFI_Buffer& Argument(const XLA_FFI_CallFrame* frame, int64_t index) {
  return *static_cast<XLA_FFI_Buffer*>(frame->args.args[index]);
}

inline const XLA_FFI_Buffer& Result(const XLA_FFI_CallFrame* frame, int64_t index) {
  return *static_cast<XLA_FFI_Buffer*>(frame->rets.rets[index]);
}

// The numbers of the call's only attribute.
inline const int64_t* Attribute(const XLA_FFI_CallFrame* frame) {
  return static_cast<int64_t*>(
      static_cast<XLA_FFI_Array*>(frame->attrs.attrs[0])->data);
}

// The numbers of a lane; all dimensions before the last `rank` ones are lanes.
template <typename T>
T* Lane(const XLA_FFI_Buffer& buffer, int rank, int64_t lane) {
  int64_t size = 1;
  for (int64_t i = buffer.rank - rank; i < buffer.rank; ++i) size *= buffer.dims[i];
  return static_cast<T*>(buffer.data) + lane * size;
}

inline int64_t Lanes(const XLA_FFI_Buffer& buffer, int rank) {
  int64_t lanes = 1;
  for (int64_t i = 0; i < buffer.rank - rank; ++i) lanes *= buffer.dims[i];
  return lanes;
}

// Whether XLA only asks which interface this is.
inline bool Introduced(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata)
    return false;
  auto* version =
      &reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)
           ->metadata->api_version;
  version->major_version = XLA_FFI_API_MAJOR;
  version->minor_version = XLA_FFI_API_MINOR;
  return true;
}
