// Two links that bring the same packets, of which one is used at a time. Each second, a script changes to the
// other link if nothing has come by the one in use.

FromDevice(eth0) -> first :: Counter -> Queue(500) -> [0] s :: PullSwitch(0);
FromDevice(eth1) -> second :: Counter -> Queue(500) -> [1] s;
s -> Unqueue -> used :: Counter -> Queue(500) -> ToDevice(eth2);

Script(set before 0,
    label again,
    wait 1s,
    set now $(used.count),
    goto same $(ne $now $before),
    write s.switch $(sub 1 $(s.switch)),
    label same,
    set before $now,
    goto again);
