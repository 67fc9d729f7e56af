// Makes FakeTensor's "cuda" work in a torch that was built without CUDA: two devices, none of which does anything.
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::DeviceType;

struct FakeCuda : public c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};

static c10::impl::DeviceGuardImplRegistrar registered(DeviceType::CUDA, new FakeCuda());
