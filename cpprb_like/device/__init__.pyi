from cpprb_like.device._torch import DeviceReplay as DeviceReplay
from cpprb_like.device._torch import DeviceView as DeviceView
