// As the file of a library that kernels do not use: no compiler of device code reads it.
#error "json.hpp is for the host"
