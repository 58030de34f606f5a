// JSON files: reading with errors that name the file and place, writing whole or not at all.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/problem.h"

namespace stepcast {

// Reads and parses a file. Throws InputError: missing or unreadable file, directory, syntax error (with line
// and column), a key given twice, nesting deeper than 100.
Json load_json(const std::filesystem::path& file);
// The same for text that stands for a file called `name`.
Json parse_json(std::string_view text, const std::string& name);

// Writes to a temporary name and renames, so that the file is always whole; a pipe or device is written as it is. Throws InputError.
void write_file(const std::filesystem::path& name, std::string_view text);

// A value in one line for messages; bytes that are no UTF-8 are replaced.
std::string text_of(const Json& value);

// "/layout/tp" + "x/y" -> "/layout/tp/x~1y"
std::string child_pointer(const std::string& pointer, const std::string& key);

// Sets the value at a JSON pointer, creating objects on the way. `assignment` is "/pointer=value", the value
// JSON or else a string. Throws InputError for a malformed pointer or one that runs through a value that is
// no object.
void apply_set(Json& document, const std::string& assignment);

// The name in `known` with the smallest edit distance to `name`; empty when nothing is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace stepcast
