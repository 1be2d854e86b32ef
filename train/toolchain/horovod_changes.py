"""What is changed in Horovod's sources before they are built."""

INIT_ERROR = "HOROVOD_INIT_ERROR"  # where a rank that could not join the ring finds why, in its C environment
IDLE_CYCLE_MS = 20  # between two exchanges of ranks without a tensor; one that is added is told at once

# (file, the text to replace, its replacement, why)
SOURCE_CHANGES = (
    *(
        (
            "horovod/common/util.py",
            f"def {name}(verbose=False):\n",
            f"def {name}(verbose=False):\n    return {is_built}\n",
            "horovodrun imported TensorFlow twice at each start to find this out: 6 seconds, 8 lines of its log",
        )
        for name, is_built in (("mpi_built", False), ("gloo_built", True))  # as in build_horovod.SETTINGS
    ),
    (
        "horovod/runner/elastic/driver.py",
        """                            for slot_info in slots])

""",
        """                            for slot_info in slots
                            if (host, slot_info.local_rank) not in self._worker_registry.get('FAILURE')])

""",
        "a lost worker whose host's cooldown was over before the ring was made again, as on a busy machine, counted as"
        " alive: none was started in its place, and all others waited for it for ever",
    ),
    (
        "horovod/tensorflow/xla_mpi_ops.cc",
        "#if TENSORFLOW_VERSION >= 2006000000",
        "#if 0",
        "GPU-only XLA custom calls; their XLA headers no longer compile from TensorFlow's wheel",
    ),
    (
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_)",
        "global_ranks_.resize(size_)",
        "written to by index; without it the Gloo controller never reports a stalled tensor",
    ),
    (
        "horovod/common/operations.cc",
        """    global_gloo_context.Initialize(ParseGlooIface());
  }
  if (state.control_operation == LibType::GLOO) {
    // Initializes global controller
    state.process_set_table.Initialize(global_gloo_context);
  }
""",
        f"""    try {{
      global_gloo_context.Initialize(ParseGlooIface());
      if (state.control_operation == LibType::GLOO) {{
        state.process_set_table.Initialize(global_gloo_context);
      }}
    }} catch (const std::exception& ex) {{
      setenv("{INIT_ERROR}", ex.what(), 1);
      global_gloo_context.Finalize();
      state.initialization_failed = true;
      return;
    }}
  }}
""",
        "a rank that does not come, or is taken out of an elastic job, made all processes abort; now hvd.init raises",
    ),
    (
        "horovod/common/operations.cc",
        """    horovod_global.shut_down = false;
    horovod_global.initialization_done = false;
""",
        """    horovod_global.shut_down = false;
    horovod_global.initialization_done = false;
    horovod_global.initialization_failed = false;
""",
        "so that hvd.init can be tried again after hvd.shutdown",
    ),
    (
        "horovod/common/operations.cc",
        """  state.last_cycle_start = std::chrono::steady_clock::now();

  if (state.mark_cycles_in_timeline) {
""",
        f"""  auto added = TensorQueue::Added();
  bool is_idle = !state.shut_down;
  for (auto process_set_id : state.process_set_table.Ids()) {{
    is_idle &= state.process_set_table.Get(process_set_id).tensor_queue.IsEmpty();
  }}
  if (is_idle) {{
    TensorQueue::AwaitAddition(added, std::chrono::milliseconds({IDLE_CYCLE_MS}));
  }}
  state.last_cycle_start = std::chrono::steady_clock::now();

  if (state.mark_cycles_in_timeline) {{
""",
        "ranks exchanged messages every millisecond, also while none had a tensor: an eighth of a core of each rank",
    ),
    (
        "horovod/common/tensor_queue.h",
        """  void RemoveJoinTensor();

protected:
""",
        """  void RemoveJoinTensor();

  bool IsEmpty() const;

  // How often a tensor was added to a queue of this process.
  static uint64_t Added();

  // Return when one is added after the first `added` ones, or after `limit`.
  static void AwaitAddition(uint64_t added, std::chrono::milliseconds limit);

protected:
""",
        "for the change of operations.cc",
    ),
    (
        "horovod/common/tensor_queue.h",
        "#include <iostream>\n",
        "#include <chrono>\n#include <cstdint>\n#include <iostream>\n",
        "for the change of operations.cc",
    ),
    (
        "horovod/common/tensor_queue.cc",
        """namespace horovod {
namespace common {
""",
        """#include <condition_variable>

namespace horovod {
namespace common {

namespace {
std::mutex addition_mutex;
std::condition_variable addition;
uint64_t additions = 0;

void NoteAddition() {
  {
    std::lock_guard<std::mutex> guard(addition_mutex);
    ++additions;
  }
  addition.notify_all();
}
} // namespace

bool TensorQueue::IsEmpty() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return tensor_table_.empty() && message_queue_.empty();
}

uint64_t TensorQueue::Added() {
  std::lock_guard<std::mutex> guard(addition_mutex);
  return additions;
}

void TensorQueue::AwaitAddition(uint64_t added, std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(addition_mutex);
  addition.wait_for(lock, limit, [&] { return additions != added; });
}
""",
        "for the change of operations.cc",
    ),
    (
        "horovod/common/tensor_queue.cc",
        """  message_queue_.push(std::move(message));
  return Status::OK();
""",
        """  message_queue_.push(std::move(message));
  NoteAddition();
  return Status::OK();
""",
        "for the change of operations.cc",
    ),
    (
        "horovod/common/tensor_queue.cc",
        """    message_queue_.push(std::move(messages[i]));
  }
  return Status::OK();
""",
        """    message_queue_.push(std::move(messages[i]));
  }
  NoteAddition();
  return Status::OK();
""",
        "for the change of operations.cc",
    ),
)
