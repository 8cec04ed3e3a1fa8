// Elements that are others put together, as their documentation says. Ports that are not connected are not there.

elementclass IPInputCombo { $color, __REST__ $check |
  input -> Paint($color) -> Strip(14) -> CheckIPHeader($check) -> output;
}

elementclass IPOutputCombo { $color, $ip, $mtu |
  input -> DropBroadcasts -> paint :: PaintTee($color) -> options :: IPGWOptions($ip) -> FixIPSrc($ip) -> ttl :: DecIPTTL
    -> length :: CheckLength($mtu) -> [0] output;
  paint[1] -> [1] output;
  options[1] -> [2] output;
  ttl[1] -> [3] output;
  length[1] -> [4] output;
}
