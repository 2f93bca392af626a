// A device of its own kind whose memory is that of the CPU: operators run on the CPU, and refuse tensors that stayed
// there. See https://docs.pytorch.org/tutorials/advanced/privateuseone.html.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/extension.h>

#include <cstring>
#include <set>
#include <string>

namespace {

using at::Tensor;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(KIND, 0);

// One device, whose streams have nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream getNewStream(c10::Device, int) const override { return getStream(DEVICE); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {start, start, &c10::free_cpu, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::detail::getDefaultCPUGenerator();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  bool isPinnedPtr(const void*) const override { return false; }
};
const bool registered = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

// The same memory as a tensor of the CPU.
Tensor on_host(const Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           keys, c10::dtype_or_default(dtype));
}

Tensor& set_storage(Tensor& tensor, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / tensor.dtype().itemsize());
  return at::cpu::set_(tensor, source, 0, {count}, {});
}

const Tensor& resize(const Tensor& tensor, c10::SymIntArrayRef given, std::optional<at::MemoryFormat>) {
  const auto size = C10_AS_INTARRAYREF_SLOW(given);
  auto* storage = tensor.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl();
  const size_t bytes = (c10::multiply_integers(size) + tensor.storage_offset()) * tensor.itemsize();
  if (storage->nbytes() < bytes) {
    auto larger = memory.allocate(bytes);
    if (storage->nbytes()) std::memcpy(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr(std::move(larger));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  const auto host = [](const Tensor& each) { return each.device().type() == KIND ? on_host(each) : each; };
  if (to.numel()) host(to).copy_(host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& given, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  TORCH_CHECK(x.device() == DEVICE && weight.device() == DEVICE, "expected both tensors of a convolution on the device");
  std::optional<Tensor> bias;
  if (given && given->defined()) bias = on_host(*given);
  return at::convolution(on_host(x), on_host(weight), bias, stride, padding, dilation, transposed, output_padding, groups)
      .to(DEVICE);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  const std::vector<int64_t> bias{transposed ? weight.size(1) * groups : weight.size(0)};
  const auto [a, b, c] = at::convolution_backward(on_host(gradient.contiguous()), on_host(x), on_host(weight),
                                                  at::OptionalIntArrayRef(bias), stride, padding, dilation, transposed,
                                                  output_padding, groups, wanted);
  const auto back = [](const Tensor& each) { return each.defined() ? each.to(DEVICE) : each; };
  return {back(a), back(b), back(c)};
}

// Operators that a GPU gives tensors of the CPU, too.
const std::set<std::string> MIXED = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_",
                                     "aten::index_put", "aten::_index_put_impl_", "aten::_foreach_copy_",
                                     "aten::_fused_adamw_"};

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().operator_name().name;
  bool here = false, there = false;
  const auto look = [&](const Tensor& each) {
    if (!each.defined()) return;
    here = here || each.device() == DEVICE;
    there = there || (each.device().is_cpu() && each.dim() > 0);
  };
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    const auto& value = (*stack)[i];
    if (value.isTensor()) look(value.toTensor());
    if (value.isTensorList()) for (const Tensor& each : value.toTensorVector()) look(each);
  }
  TORCH_CHECK(!(here && there) || MIXED.count(name), "expected all tensors of ", name, " on one device");
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::cpu::as_strided_symint);
  m.impl("view", &at::cpu::view_symint);
  m.impl("unfold", &at::cpu::unfold);
  m.impl("_reshape_alias", &at::cpu::_reshape_alias_symint);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(static_cast<Tensor& (*)(Tensor&, at::Storage, int64_t, at::IntArrayRef, at::IntArrayRef)>(&at::cpu::set_)));
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}
