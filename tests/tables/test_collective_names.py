import pytest

from diagnose.tables.names import COLLECTIVE, EXPERT_EXCHANGE

EXCHANGES = [
    "deep_ep::internode::dispatch",
    "intra_node_kernel",
    "void ep_dispatch<4>(int*)",
    "EP_Combine_bf16",
    "moe_a2a_prepare",
    "MoEA2A_combine",
    "a2aDispatch",
    "void AllToAllKernel<float>()",
    "all_to_all_v",
]
COLLECTIVES = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    "rcclGenericKernel",
    "mscclKernel",
    "void vllm::cross_device_reduce_2stage<c10::Half, 8>",
    "one_shot_all_reduce",
    "twoShotAllReduceKernel",
    "allreduce_one_shot",
    "multimem_one_shot_all_reduce_kernel",
    "quickReduce_kernel",
    "nvshmem_barrier",
    "rocshmem_put",
    "deep_ep::intranode::combine",
    "lamport_allgather_kernel",
    "reduce_scatter_base_kernel",
    "AllReduceFusionKernel",
]
OTHERS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
    "void at::native::reduce_kernel<512, 1>",
    "ncclKernel_init",
    "deep_ep::get_dispatch_layout",
    "triton_poi_fused_all_to_all_0",
    "gemm_all_gather_kernel",
    "void cub::DispatchRadixSort",
    "",
]


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchanges_of_experts_are_found(name):
    assert EXPERT_EXCHANGE.search(name)
    assert COLLECTIVE.search(name)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_of_all_libraries_are_found(name):
    assert COLLECTIVE.search(name)


@pytest.mark.parametrize("name", OTHERS)
def test_what_computes_is_no_collective(name):
    assert not COLLECTIVE.search(name)
    assert not EXPERT_EXCHANGE.search(name)
