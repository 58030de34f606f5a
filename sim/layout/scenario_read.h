// Names of the scenario's enumerations and the sections that need no decision. Used by scenario.cpp and
// megatron_scenario.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "layout/scenario.h"

namespace stepcast {

template <typename Enum>
struct EnumName {
  std::string_view name;
  Enum value;
};

inline constexpr std::array kCpComms = {
    EnumName<CpComm>{"p2p", CpComm::kP2p}, EnumName<CpComm>{"a2a", CpComm::kAllToAll},
    EnumName<CpComm>{"allgather", CpComm::kAllGather}, EnumName<CpComm>{"a2a+p2p", CpComm::kAllToAllP2p}};

// The schema has already checked that the name is one of these.
template <typename Enum, std::size_t N>
Enum enum_of(const Json& name, const std::array<EnumName<Enum>, N>& names) {
  const auto& text = name.get_ref<const std::string&>();
  for (const auto& entry : names)
    if (entry.name == text) return entry.value;
  return names[0].value;
}

// Batch, precision, sharding, recompute, overlap, moe, kernels, optimizer, offload from a schema-checked
// document with defaults.
void read_simple_sections(const Json& document, Scenario& scenario);

// 1 -> "fp8", 2 -> "bf16" (or "fp16" under the fp16 recipe), 4 -> "fp32".
std::string name_of_bytes(std::int64_t bytes, Recipe recipe);

}  // namespace stepcast
