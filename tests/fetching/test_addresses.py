from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.fetching.addresses import is_odd_number, is_public, parse_address

V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
INNER_V4 = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "168.63.129.16/32",
]
INNER_V6 = [
    "::/128",
    "::1/128",
    "::/96",
    "::ffff:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/32",
    "2001:2::/48",
    "2001:10::/28",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "fc00::/7",
    "fd00:ec2::254/128",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]


@pytest.mark.parametrize("block", INNER_V4)
def test_first_and_last_of_every_inner_v4_block_are_refused(block: str) -> None:
    network = IPv4Network(block)
    assert not is_public(network[0])
    assert not is_public(network[-1])


@pytest.mark.parametrize("block", INNER_V6)
def test_first_and_last_of_every_inner_v6_block_are_refused(block: str) -> None:
    network = IPv6Network(block)
    assert not is_public(network[0])
    assert not is_public(network[-1])


@pytest.mark.parametrize(
    "text",
    [
        "1.0.0.0",
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "168.63.129.15",
        "168.63.129.17",
        "2000::",
        "2001:200::",
        "2001:4860:4860::8888",
        "2003::",
        "2001:db7:ffff::",
        "2001:db9::",
        "2606:4700::1111",
        "3fff:1000::",
    ],
)
def test_neighbours_of_the_blocks_are_public(text: str) -> None:
    assert is_public(ip_address(text))


@given(V4)
def test_v4_agrees_with_the_standard_library_where_that_refuses(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_public(address) or address in IPv4Network("192.0.0.0/24")


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_v6_agrees_with_the_standard_library_where_that_refuses(address: IPv6Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_public(address)


@given(V4, st.integers(0, 2**64 - 1))
def test_no_form_that_carries_an_ipv4_address_is_public(inner: IPv4Address, rest: int) -> None:
    number = int(inner)
    forms = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "translated": 0xFFFF << 48 | number,
        "NAT64": 0x64FF9B << 96 | number,
        "local NAT64": 0x64FF9B0001 << 80 | number,
        "6to4": 0x2002 << 112 | number << 80 | rest,
        "Teredo": 0x20010000 << 96 | rest << 32 | (number ^ 0xFFFFFFFF),
        "ISATAP of a private address": 0x2A00 << 112 | 0x5EFE << 32 | number,
        "ISATAP of a public address": 0x2A00 << 112 | 0x02005EFE << 32 | number,
    }
    for form, value in forms.items():
        assert not is_public(IPv6Address(value)), form


@given(st.sampled_from(INNER_V4), st.data())
def test_everything_in_an_inner_block_is_refused(block: str, data: st.DataObject) -> None:
    network = IPv4Network(block)
    assert not is_public(network[data.draw(st.integers(0, network.num_addresses - 1))])


def test_scoped_addresses_are_refused() -> None:
    address = parse_address("2606:4700::1111%eth0")
    assert address is not None
    assert not is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.01",
        "0x",
        "1",
        "127.0.0.1.",
        "127.0.0.256",
        "1.2.3.4.5",
        "example.0x7f",
        "example.1",
        "0X7F.0.0.1",
        "017700000001",
    ],
)
def test_odd_spellings_are_recognised(host: str) -> None:
    assert is_odd_number(host)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "0.0.0.0", "255.255.255.255", "example.com", "1.example", "0x7f.example", "x1", ""]
)
def test_usual_spellings_are_not(host: str) -> None:
    assert not is_odd_number(host)


@given(V4)
def test_every_address_has_one_usual_spelling(address: IPv4Address) -> None:
    assert not is_odd_number(str(address))
    assert is_odd_number(str(int(address)))
    assert is_odd_number(hex(int(address)))
