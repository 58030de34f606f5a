// SHA-256 (FIPS 180-4) of a text, as 64 hex digits: identifies data files in provenance.
#pragma once

#include <string>
#include <string_view>

namespace stepcast {

std::string sha256(std::string_view text);

}  // namespace stepcast
