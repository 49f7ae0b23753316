#pragma once
constexpr float OF_MARKED = 2;
