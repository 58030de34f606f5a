// Which key of a scenario an option of Megatron comes from, for messages about scenarios.
#pragma once

#include <string>

namespace stepcast {

// "tensor_model_parallel_size" -> "/layout/tp"; empty for an option that a scenario cannot set.
std::string scenario_pointer(const std::string& option);

}  // namespace stepcast
