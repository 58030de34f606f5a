// JSON Schemas (draft 7) under scenarios/schemas: one description of every input, used to refuse, to fill in
// defaults, and as documentation.
#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/problem.h"

namespace stepcast {

// Appends one problem for each place where `document` breaks the schema called `name` (a file name without
// ".schema.json"). `prefix` is put before every pointer.
void check_schema(const Json& document, const std::string& name, const std::string& file,
                  const std::string& prefix, std::vector<Problem>& problems);

// The document without the keys whose value is null, which means "not given".
Json without_absent(const Json& document, const std::string& name);

// True when `pointer` names a key that the schema describes.
bool schema_has(const std::string& name, const std::string& pointer);

// The document with every missing key that has a `default` in the schema filled in, keys in the schema's
// order. A null stands for "not given" and takes the default too. The document must be valid.
Json with_defaults(const Json& document, const std::string& name);

}  // namespace stepcast
