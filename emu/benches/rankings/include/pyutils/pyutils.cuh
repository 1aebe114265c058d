// In place of the bindings to Python, which only the host's part has.
#pragma once
#define PYBIND11_MODULE(name, variable) template <class Module> void bind_##name(Module &variable)
namespace kittens::py {
template <auto function, class... Member> void bind_function(auto &module, const char *name, Member... member);
template <auto kernel, class... Member> void bind_kernel(auto &module, const char *name, Member... member);
} // namespace kittens::py
namespace py = kittens::py;
