"""The names of headers that belong to host code: those of the C++ library and of systems, and those of libraries."""

__all__ = ["OF_HOST", "OF_HOST_ALONE"]

_OF_HOST = """
    iostream ostream istream sstream strstream fstream iomanip vector string map set list deque queue stack memory functional
    thread mutex shared_mutex atomic chrono random array tuple numeric ratio optional variant any bitset complex exception
    stdexcept typeinfo unordered_map unordered_set iterator string_view regex filesystem future new ctime condition_variable
    typeindex valarray locale csignal cstdarg stdarg.h time.h signal.h unistd.h windows.h omp.h mpi.h pthread.h fcntl.h dirent.h
    sys/* getopt.h bits/stdc++.h arpa/* netinet/* netdb.h dlfcn.h cxxabi.h execinfo.h sched.h io.h direct.h system_error ios iosfwd
    streambuf charconv bit span numbers ranges concepts compare format source_location execution forward_list scoped_allocator
    memory_resource clocale cwchar wchar.h cfenv fenv.h malloc.h alloca.h strings.h locale.h libgen.h termios.h pwd.h immintrin.h
    x86intrin.h emmintrin.h xmmintrin.h pmmintrin.h tmmintrin.h smmintrin.h nmmintrin.h wmmintrin.h intrin.h
    version experimental/* barrier latch semaphore stop_token syncstream spanstream coroutine expected generator mdspan print
    flat_map flat_set stacktrace stdfloat codecvt cuchar uchar.h cwctype wctype.h csetjmp setjmp.h cstdbool cstdalign ccomplex
    ctgmath tgmath.h complex.h stdatomic.h threads.h semaphore.h syslog.h sysexits.h spawn.h ucontext.h error.h err.h values.h
    cudaEGL.h cuda_egl_interop.h cuda_d3d*.h DirectXMath.h D3D*.h d3d*.h dxgi*.h wrl.h GLFW/* SDL*.h SDL2/* X11/* opencv2/* boost/*
    nvml.h nvrtc.h nvJitLink.h cupti*.h cudla.h nvjpeg.h nvgraph.h cblas.h lapacke.h mkl*.h Accelerate/* lmdb.h leveldb/* hdf5.h
    H5Cpp.h netcdf.h fftw3*.h gsl/* tbb/* absl/* zlib.h bzlib.h lzma.h png.h jpeglib.h tiffio.h sndfile.h curl/* openssl/*
    sqlite3.h mex.h tmwtypes.h gpu/mxGPUArray.h jni.h R.h Rinternals.h numpy/*
    arm_neon.h glob.h poll.h GL/* EGL/* GLES*/* vulkan/* hip/* rocblas/* hipblas/*
"""
# A project brings many of these with it. Kernels use none of their names, and NVRTC cannot read most of them.
_OF_HOST_ALONE = """
    gtest/* benchmark/* fmt/* spdlog/* glog/* gflags/* google/protobuf/* *.pb.h nlohmann/* rapidjson/* yaml-cpp/* catch2/* CLI/*
    json.hpp catch.hpp doctest.h cxxopts.hpp CLI11.hpp argparse.hpp cnpy.h lodepng.h tinyexr.h tiny_obj_loader.h stb_image.h
    stb_image_write.h stb_image_resize.h stb_image_resize2.h msgpack.hpp msgpack/*
"""

OF_HOST = tuple(_OF_HOST.split())
_ALONE = _OF_HOST_ALONE.split()
OF_HOST_ALONE = (*_ALONE, *(f"*/{name}" for name in _ALONE if "*" not in name))
