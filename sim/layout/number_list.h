// Lists of numbers as launch arguments write them: "4", "[0, 1, 1]", "([0]*3+[1]*58)".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace stepcast {

// As Megatron evaluates it. Only numbers, lists, + and *; a list has at most 100,000 elements. A number alone is
// a list of one. Absent when it is none of these.
std::optional<std::vector<std::int64_t>> evaluate_list(std::string_view expression);

}  // namespace stepcast
