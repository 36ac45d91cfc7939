from cpprb_like.device._jax import JaxReplay as JaxReplay
from cpprb_like.device._jax import JaxView as JaxView
from cpprb_like.device._recorders import DeviceRecorder as DeviceRecorder
from cpprb_like.device._recorders import brax_step as brax_step
from cpprb_like.device._torch import DeviceReplay as DeviceReplay
from cpprb_like.device._torch import DeviceView as DeviceView
