#pragma once
constexpr float OF_TWO = 2;
