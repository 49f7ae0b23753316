"""The C++ that a package's own code has for launches: the binaries of kernels, loaded by the CUDA driver and launched."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cupyops.dtypes import DTYPES

__all__ = ["Binaries", "c_type"]

# The driver is found in the process, so that the package is compiled and linked without CUDA's headers and libraries.
RUNTIME = r"""
#include <dlfcn.h>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace cupyops {
namespace {

struct Driver {
  int (*device)(int*) = find<int (*)(int*)>("cuCtxGetDevice");
  int (*attribute)(int*, int, int) = find<int (*)(int*, int, int)>("cuDeviceGetAttribute");
  int (*load)(void**, const void*) = find<int (*)(void**, const void*)>("cuModuleLoadData");
  int (*function)(void**, void*, const char*) = find<int (*)(void**, void*, const char*)>("cuModuleGetFunction");
  int (*set)(void*, int, int) = find<int (*)(void*, int, int)>("cuFuncSetAttribute");
  using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  Launch* launch = find<Launch*>("cuLaunchKernel");
  int (*launch_cooperative)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**) =
      find<decltype(launch_cooperative)>("cuLaunchCooperativeKernel");
  int (*name)(int, const char**) = find<int (*)(int, const char**)>("cuGetErrorName");

  template <typename F>
  static F find(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void* found = library ? dlsym(library, name) : nullptr;
    if (!found) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    return reinterpret_cast<F>(found);
  }

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  void check(int status, const std::string& what) const {
    if (!status) return;
    const char* error = nullptr;
    name(status, &error);
    throw std::runtime_error(what + ": " + (error ? error : "unknown error of the CUDA driver"));
  }
};

struct Binary {
  int architecture;
  bool exactly;  // runs on this architecture alone
  const char* code;
};

// The binaries of a source, loaded once on each GPU: a kernel of them shares its variables with the others.
class Code {
 public:
  template <int N>
  Code(const Binary (&binaries)[N]) : binaries_(binaries), count_(N) {}

  void* on(int gpu, const char* kernel) {
    auto found = loaded_.find(gpu);
    if (found != loaded_.end()) return found->second;
    const Driver& driver = Driver::get();
    int major = 0, minor = 0;
    driver.check(driver.attribute(&major, 75, gpu), kernel);
    driver.check(driver.attribute(&minor, 76, gpu), kernel);
    const int here = 10 * major + minor;
    const Binary* best = nullptr;
    std::string known;
    for (int i = 0; i < count_; ++i) {
      const Binary& one = binaries_[i];
      known += " sm_" + std::to_string(one.architecture);
      const bool runs = one.exactly ? one.architecture == here : one.architecture / 10 == major && one.architecture <= here;
      if (runs && (!best || one.architecture > best->architecture)) best = &one;
    }
    if (!best) {
      throw std::runtime_error(std::string(kernel) + ": the package has code for" + known + ", and this GPU is sm_" +
                               std::to_string(here));
    }
    void* module = nullptr;
    driver.check(driver.load(&module, best->code), std::string(kernel) + ": its code was refused");
    return loaded_[gpu] = module;
  }

 private:
  const Binary* binaries_;
  int count_;
  std::map<int, void*> loaded_;
};

inline std::mutex& mutex() {
  static std::mutex one;
  return one;
}

class Kernel {
 public:
  Kernel(const char* what, const char* name, Code& code, unsigned x, unsigned y, unsigned z, bool cooperative, bool large_cluster)
      : what_(what), name_(name), code_(code), block_{x, y, z}, cooperative_(cooperative), large_cluster_(large_cluster) {}

  void launch(int64_t x, int64_t y, int64_t z, int64_t shared, void* stream, void** arguments) {
    if (x == 0 || y == 0 || z == 0) return;
    if (x < 0 || x > 2147483647 || y < 0 || y > 65535 || z < 0 || z > 65535) {
      throw std::runtime_error(std::string(what_) + ": a grid of " + std::to_string(x) + " x " + std::to_string(y) + " x " +
                               std::to_string(z) + " blocks");
    }
    const Driver& driver = Driver::get();
    void* function = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex());
      function = on_this_gpu(driver, static_cast<int>(shared));
    }
    const unsigned bytes = static_cast<unsigned>(shared);
    const unsigned* b = block_;
    const int status =
        cooperative_
            ? driver.launch_cooperative(function, x, y, z, b[0], b[1], b[2], bytes, stream, arguments)
            : driver.launch(function, x, y, z, b[0], b[1], b[2], bytes, stream, arguments, nullptr);
    if (status) {
      driver.check(status, std::string(what_) + ": the launch of " + std::to_string(x) + " x " + std::to_string(y) + " x " +
                               std::to_string(z) + " blocks was refused");
    }
  }

 private:
  struct Loaded {
    void* function;
    int shared;
  };

  void* on_this_gpu(const Driver& driver, int shared) {
    int gpu = 0;
    driver.check(driver.device(&gpu), what_);
    auto found = loaded_.find(gpu);
    if (found == loaded_.end()) {
      void* function = nullptr;
      driver.check(driver.function(&function, code_.on(gpu, what_), name_), what_);
      if (large_cluster_) driver.check(driver.set(function, 14, 1), what_);
      found = loaded_.emplace(gpu, Loaded{function, 0}).first;
    }
    if (shared > found->second.shared) {
      driver.check(driver.set(found->second.function, 8, shared), std::string(what_) + ": " + std::to_string(shared) +
                                                                      " bytes of dynamic shared memory a block");
      found->second.shared = shared;
    }
    return found->second.function;
  }

  const char* what_;
  const char* name_;
  Code& code_;
  unsigned block_[3];
  bool cooperative_, large_cluster_;
  std::map<int, Loaded> loaded_;
};

template <typename Tensor>
void* address(Tensor&& tensor, uintptr_t alignment) {
  void* found = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &found));
  if (reinterpret_cast<uintptr_t>(found) % alignment) throw std::runtime_error("a kernel needs an aligned tensor");
  return found;
}

template <typename T>
T number(int64_t value) {
  const T found = static_cast<T>(value);
  if (static_cast<int64_t>(found) != value) {
    throw std::runtime_error("a size does not fit the parameter of a kernel: " + std::to_string(value));
  }
  return found;
}

}  // namespace
}  // namespace cupyops
"""


def c_type(dtype: str) -> str:
    """Returns the C++ type of a number on the host. 16-bit floats are passed as their bits."""
    return "uint16_t" if dtype in ("float16", "bfloat16") else DTYPES[dtype].c_type


@dataclass
class Binaries:
    """The binaries and the kernels of a package, as C++ variables."""

    _codes: dict[tuple[tuple[int, bool, bytes], ...], str] = field(default_factory=dict)
    _kernels: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def kernel(
        self,
        what: str,
        name: str,
        codes: Sequence[tuple[int, bool, bytes]],
        block: Sequence[int],
        cooperative: bool,
        large_cluster: bool,
    ) -> str:
        """Returns the C++ variable of a kernel.

        Args:
            what: the kernel and its dtypes, for messages.
            name: the kernel's name in the binaries.
            codes: for each architecture, whether the binary runs on no other one, and the binary.
            block: threads in x, y, z.
            cooperative, large_cluster: how it is launched.
        """
        code = self._codes.setdefault(tuple(codes), f"cupyops_code_{len(self._codes)}")
        key = (what, name, code, *block, cooperative, large_cluster)
        return self._kernels.setdefault(key, f"cupyops_kernel_{len(self._kernels)}")

    def source(self) -> str:
        """Returns the C++ text of the variables, after the code that launches them."""
        lines = [RUNTIME]
        for codes, variable in self._codes.items():
            for i, (_, _, code) in enumerate(codes):
                lines.append(f"alignas(16) static const char {variable}_{i}[] =\n{_literal(code)};")
            listed = ", ".join(f"{{{a}, {str(e).lower()}, {variable}_{i}}}" for i, (a, e, _) in enumerate(codes))
            lines.append(f"static const cupyops::Binary {variable}_all[] = {{{listed}}};")
            lines.append(f"static cupyops::Code {variable}({variable}_all);")
        for (what, name, of, *block_and_flags), variable in self._kernels.items():
            numbers = ", ".join(str(x).lower() for x in block_and_flags)
            lines.append(f'static cupyops::Kernel {variable}("{what}", "{name}", {of}, {numbers});')
        return "\n".join(lines)


# A digit after an octal escape of three digits is a character of its own.
_CHARACTERS = [chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in range(256)]


def _literal(code: bytes) -> str:
    parts = (code[i : i + 1024] for i in range(0, len(code), 1024))
    return "\n".join(f'"{"".join(map(_CHARACTERS.__getitem__, part))}"' for part in parts)
