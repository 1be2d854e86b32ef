// RingsliceRecords: records that lie in this process's memory, as a tensor of strings; one copy for each record.
//
// The reader hands over addresses and sizes, so that no Python runs for a record and none of it is copied twice. The
// caller keeps the memory alive until the op has run, as it does when it runs the op eagerly.

#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace ringslice {

using tensorflow::errors::InvalidArgument;

// Stateful: equal addresses hold other bytes later, so that nothing may be folded or run once for two.
REGISTER_OP("RingsliceRecords")
    .Input("addresses: int64")
    .Input("sizes: int64")
    .Output("records: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &shape));
      TF_RETURN_IF_ERROR(context->Merge(shape, context->input(1), &shape));
      context->set_output(0, shape);
      return tensorflow::OkStatus();
    });

class RecordsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& addresses = context->input(0);
    const tensorflow::Tensor& sizes = context->input(1);
    OP_REQUIRES(context, addresses.dims() == 1 && addresses.shape() == sizes.shape(),
                InvalidArgument("addresses and sizes are not two vectors of the same length"));
    tensorflow::Tensor* records = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, addresses.shape(), &records));
    const auto from = addresses.vec<int64_t>();
    const auto bytes = sizes.vec<int64_t>();
    auto to = records->vec<tensorflow::tstring>();
    for (int64_t i = 0; i < from.size(); ++i) {
      OP_REQUIRES(context, bytes(i) >= 0, InvalidArgument("record ", i, " has a size of ", bytes(i)));
      to(i).assign(reinterpret_cast<const char*>(static_cast<intptr_t>(from(i))), bytes(i));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("RingsliceRecords").Device(tensorflow::DEVICE_CPU), RecordsOp);

}  // namespace ringslice
