// The JSON type by name only: headers that pass JSON on need no more, and compile ten times faster.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace stepcast {

using Json = nlohmann::ordered_json;  // keys keep their order: `schema` comes first in every document

}  // namespace stepcast
