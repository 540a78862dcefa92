"""Coordinates of the regions of AWS, GCP and Azure."""

from functools import cache
from typing import NamedTuple


class Site(NamedTuple):
    """The city that a region is named after or known to be near, with its coordinates in degrees."""

    city: str
    latitude: float
    longitude: float


def site_of(provider: str, region: str) -> Site | None:
    """The site of a region by the table of its provider, or None.

    If the provider has no table, for example the provider of a data center, the region is looked up in the
    tables of all clouds.
    """
    sites = _sites()
    cloud_name, name = provider.lower(), region.lower()
    if cloud_name in _REGION_TABLES:
        return sites.get((cloud_name, name))
    # Region names of the clouds do not collide.
    return next((sites[cloud, name] for cloud in _REGION_TABLES if (cloud, name) in sites), None)


def is_cloud_region(name: str) -> bool:
    """Whether the name is a region of a cloud, with or without the provider: eu-west-1, aws-eu-west-1."""
    return name.lower() in _names()


@cache
def _names() -> frozenset[str]:
    names: set[str] = set()
    for provider, region in _sites():
        names.update((region, f"{provider}-{region}"))
    return frozenset(names)


@cache
def _sites() -> dict[tuple[str, str], Site]:
    sites = {}
    for provider, text in _REGION_TABLES.items():
        for line in text.splitlines():
            region, latitude, longitude, city = line.split(maxsplit=3)
            sites[provider, region] = Site(city, float(latitude), float(longitude))
    return sites


# A line per region: name, latitude and longitude in degrees, city.
_AWS = """\
af-south-1 -33.92 18.42 Cape Town
ap-east-1 22.30 114.17 Hong Kong
ap-east-2 25.03 121.57 Taipei
ap-northeast-1 35.68 139.69 Tokyo
ap-northeast-2 37.57 126.98 Seoul
ap-northeast-3 34.69 135.50 Osaka
ap-south-1 19.08 72.88 Mumbai
ap-south-2 17.39 78.49 Hyderabad
ap-southeast-1 1.35 103.82 Singapore
ap-southeast-2 -33.87 151.21 Sydney
ap-southeast-3 -6.21 106.85 Jakarta
ap-southeast-4 -37.81 144.96 Melbourne
ap-southeast-5 3.14 101.69 Kuala Lumpur
ap-southeast-6 -36.85 174.76 Auckland
ap-southeast-7 13.76 100.50 Bangkok
ca-central-1 45.50 -73.57 Montreal
ca-west-1 51.05 -114.07 Calgary
cn-north-1 39.90 116.41 Beijing
cn-northwest-1 37.50 105.20 Zhongwei
eu-central-1 50.11 8.68 Frankfurt
eu-central-2 47.38 8.54 Zurich
eu-north-1 59.33 18.07 Stockholm
eu-south-1 45.46 9.19 Milan
eu-south-2 41.65 -0.88 Zaragoza
eu-west-1 53.35 -6.26 Dublin
eu-west-2 51.51 -0.13 London
eu-west-3 48.86 2.35 Paris
il-central-1 32.08 34.78 Tel Aviv
me-central-1 25.20 55.27 Dubai
me-south-1 26.07 50.56 Manama
mx-central-1 20.59 -100.39 Queretaro
sa-east-1 -23.55 -46.63 Sao Paulo
us-east-1 39.04 -77.49 Ashburn
us-east-2 39.96 -83.00 Columbus
us-gov-east-1 39.96 -83.00 Columbus
us-gov-west-1 45.84 -119.70 Boardman
us-west-1 37.35 -121.95 San Jose
us-west-2 45.84 -119.70 Boardman
"""

_GCP = """\
africa-south1 -26.20 28.05 Johannesburg
asia-east1 24.05 120.52 Changhua
asia-east2 22.30 114.17 Hong Kong
asia-northeast1 35.68 139.69 Tokyo
asia-northeast2 34.69 135.50 Osaka
asia-northeast3 37.57 126.98 Seoul
asia-south1 19.08 72.88 Mumbai
asia-south2 28.61 77.21 Delhi
asia-southeast1 1.35 103.82 Singapore
asia-southeast2 -6.21 106.85 Jakarta
asia-southeast3 13.76 100.50 Bangkok
australia-southeast1 -33.87 151.21 Sydney
australia-southeast2 -37.81 144.96 Melbourne
europe-central2 52.23 21.01 Warsaw
europe-north1 60.57 27.19 Hamina
europe-north2 59.33 18.07 Stockholm
europe-southwest1 40.42 -3.70 Madrid
europe-west1 50.47 3.82 Saint-Ghislain
europe-west10 52.52 13.40 Berlin
europe-west12 45.07 7.69 Turin
europe-west2 51.51 -0.13 London
europe-west3 50.11 8.68 Frankfurt
europe-west4 53.44 6.83 Eemshaven
europe-west6 47.38 8.54 Zurich
europe-west8 45.46 9.19 Milan
europe-west9 48.86 2.35 Paris
me-central1 25.29 51.53 Doha
me-central2 26.43 50.10 Dammam
me-west1 32.08 34.78 Tel Aviv
northamerica-northeast1 45.50 -73.57 Montreal
northamerica-northeast2 43.65 -79.38 Toronto
northamerica-south1 20.59 -100.39 Queretaro
southamerica-east1 -23.55 -46.63 Sao Paulo
southamerica-west1 -33.45 -70.67 Santiago
us-central1 41.26 -95.86 Council Bluffs
us-east1 33.20 -80.01 Moncks Corner
us-east4 39.04 -77.49 Ashburn
us-east5 39.96 -83.00 Columbus
us-south1 32.78 -96.80 Dallas
us-west1 45.59 -121.18 The Dalles
us-west2 34.05 -118.24 Los Angeles
us-west3 40.76 -111.89 Salt Lake City
us-west4 36.17 -115.14 Las Vegas
"""

_AZURE = """\
australiacentral -35.31 149.12 Canberra
australiacentral2 -35.31 149.12 Canberra
australiaeast -33.87 151.21 Sydney
australiasoutheast -37.81 144.96 Melbourne
austriaeast 48.21 16.37 Vienna
belgiumcentral 50.85 4.35 Brussels
brazilsouth -23.55 -46.63 Sao Paulo
brazilsoutheast -22.91 -43.17 Rio de Janeiro
canadacentral 43.65 -79.38 Toronto
canadaeast 46.81 -71.21 Quebec
centralindia 18.52 73.86 Pune
centralus 41.59 -93.62 Des Moines
chilecentral -33.45 -70.67 Santiago
chinaeast 31.23 121.47 Shanghai
chinaeast2 31.23 121.47 Shanghai
chinanorth 39.90 116.41 Beijing
chinanorth2 39.90 116.41 Beijing
chinanorth3 41.12 114.73 Zhangjiakou
eastasia 22.30 114.17 Hong Kong
eastus 38.80 -78.20 Northern Virginia
eastus2 36.67 -78.39 Boydton
francecentral 48.86 2.35 Paris
francesouth 43.30 5.37 Marseille
germanynorth 52.52 13.40 Berlin
germanywestcentral 50.11 8.68 Frankfurt
indonesiacentral -6.21 106.85 Jakarta
israelcentral 32.08 34.78 Tel Aviv
italynorth 45.46 9.19 Milan
japaneast 35.68 139.69 Tokyo
japanwest 34.69 135.50 Osaka
jioindiacentral 21.15 79.09 Nagpur
jioindiawest 22.47 70.06 Jamnagar
koreacentral 37.57 126.98 Seoul
koreasouth 35.18 129.08 Busan
malaysiawest 3.14 101.69 Kuala Lumpur
mexicocentral 20.59 -100.39 Queretaro
newzealandnorth -36.85 174.76 Auckland
northcentralus 41.88 -87.63 Chicago
northeurope 53.35 -6.26 Dublin
norwayeast 59.91 10.75 Oslo
norwaywest 58.97 5.73 Stavanger
polandcentral 52.23 21.01 Warsaw
qatarcentral 25.29 51.53 Doha
southafricanorth -26.20 28.05 Johannesburg
southafricawest -33.92 18.42 Cape Town
southcentralus 29.42 -98.50 San Antonio
southeastasia 1.35 103.82 Singapore
southindia 13.08 80.27 Chennai
spaincentral 40.42 -3.70 Madrid
swedencentral 60.67 17.14 Gavle
switzerlandnorth 47.38 8.54 Zurich
switzerlandwest 46.20 6.14 Geneva
uaecentral 24.45 54.38 Abu Dhabi
uaenorth 25.20 55.27 Dubai
uksouth 51.51 -0.13 London
ukwest 51.48 -3.18 Cardiff
usgovarizona 33.45 -112.07 Phoenix
usgovtexas 29.42 -98.50 San Antonio
usgovvirginia 36.67 -78.39 Boydton
westcentralus 41.14 -104.82 Cheyenne
westeurope 52.37 4.90 Amsterdam
westindia 19.08 72.88 Mumbai
westus 37.35 -121.95 San Jose
westus2 47.23 -119.85 Quincy
westus3 33.45 -112.07 Phoenix
"""

_REGION_TABLES = {"aws": _AWS, "gcp": _GCP, "azure": _AZURE}
