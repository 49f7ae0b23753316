// A header of a project, in a folder that an option -I names: device code, and code of the host around it.
#pragma once

#include <stdlib.h>

#include <string>
#include <vector>

#include "parts/once.h"
#include <parts/twice.h>

struct Factor {
    float by;
};

inline std::string name_of(const Factor& factor) { return std::to_string(factor.by); }
