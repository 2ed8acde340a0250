"""Passwords as Kafka encrypts them in dynamic settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.errors import ConfigError
from barnabas.wire.auth.password_encoder import PasswordEncoder

SECRET = "encoder-secret"
#: Written by Apache Kafka 3.9.1's own encoder, with the secret above.
PASSWORD_OF_KAFKA = "keystore-passwörd"
FROM_KAFKA = {
    "AES/CBC/PKCS5Padding": (
        "initializationVector:eOTh2B5yLNLez6X5T0x5TA==,keyLength:128,salt:hbS1ECUGA4a4xey1mj7vjkKP3TFo0DQ4hRL"
        "/Me7WrwyeY3T5A4H8VI6VC3WL79tgxbhVHY0BXywpdwATsustkeB4VEaKXuIzXUoBVDkZCPQPWsmtxMVe6jpQkuyX2FBXP0ub9si"
        "c7LMTf7Ej4gn6KrFbq4CRygXD00Kxq9bsiNrn85/95cx9s6jyEVP8pcBX9KvZbAmvTaAuoJMG2Q09USAVU+DRfMsG4L6gkGm8GGZ"
        "q7s1mTI8PfqJEh0HpuZzG6aHCf5OFRXj5ycBonOJG16ZsLA99QqXzSfc+W6gVvQLkGF42Ab5FBex96ntjwEuTQLmlsnlDG0eTjOh"
        "fbM9MdQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4"
        "096,passwordLength:17,encryptedPassword:GH4hIJVhpw6N7JDgQno5/yQnZU/exlWIqp/F6eryThc="
    ),
    "AES/GCM/NoPadding": (
        "initializationVector:OTbkTnn3RgdLCcO2,keyLength:128,salt:zApG3n+95Lz4gdkhh+s3JrbPXONruDY7BNZfykRFjUl"
        "KCSuIx7m71Tw6VvaNHDt0NWBkid6yk3OM3RhIytnotl3ZjZc5YcKGK6JjsVyN70mJKY8b4z/VbAnD4fu3JarPZVZI9LVBO8kyPaS"
        "LOu8Qq11mTy+ekKKpYaa2SFJamZQOcwpmgDzf/SLCmXU34RyAm9e0EGeO42NNgJG9rvxNwwPBIO0xsa16QGGISLmT79YjXNgxVQL"
        "R6WJyd98o4TElef3Ki2tD/ksTTPyrSsOiMCX06Hg0FDSuV70/cuhUwgpLmqlLJ08PRau0d4VChkuLiHxC1z1y9HxtrkwO/R0tsg="
        "=,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/GCM/NoPadding,authenticationTagLength"
        ":128,iterations:4096,passwordLength:17,encryptedPassword:L8whGjBH14Qk7SfMpIgPSX/+MTZCBlfFkKlYJGOE1bt"
        "M7Q=="
    ),
}


@pytest.mark.parametrize("cipher", sorted(FROM_KAFKA))
def test_passwords_encoded_by_kafka_are_decoded_with_any_settings(cipher: str) -> None:
    assert PasswordEncoder(SECRET).decode(FROM_KAFKA[cipher]) == PASSWORD_OF_KAFKA


@pytest.mark.parametrize("cipher", sorted(FROM_KAFKA))
@pytest.mark.parametrize("key_factory", [None, "PBKDF2WithHmacSHA1", "PBKDF2WithHmacSHA256"])
def test_every_algorithm_survives_a_round_trip(cipher: str, key_factory: str | None) -> None:
    encoder = PasswordEncoder(SECRET, cipher=cipher, key_factory=key_factory, key_bits=256, iterations=1024)
    encoded = encoder.encode("hush")
    assert "hush" not in encoded and encoder.decode(encoded) == "hush"
    assert encoder.encode("hush") != encoded  # a salt is used once
    with pytest.raises(ConfigError, match=r"password\.encoder\.secret"):
        PasswordEncoder("another").decode(encoded)


@given(st.text(max_size=50))
def test_any_text_survives(password: str) -> None:
    password = password.encode("utf-8", "ignore").decode()
    encoder = PasswordEncoder(SECRET, iterations=1024)
    assert encoder.decode(encoder.encode(password)) == password


@pytest.mark.parametrize("text", ["", "hush", "salt:hush", "keyFactoryAlgorithm:PBKDF2WithHmacSHA512,iterations:hush"])
def test_nonsense_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PasswordEncoder(SECRET).decode(text)
    assert "hush" not in str(refused.value) and refused.value.__cause__ is None


@pytest.mark.parametrize("settings", [{"key_factory": "PBKDF2WithMD5"}, {"cipher": "DES"}, {"key_bits": 100}])
def test_unknown_algorithm_is_named(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"password\.encoder\."):
        PasswordEncoder(SECRET, **settings)  # type: ignore[arg-type]
